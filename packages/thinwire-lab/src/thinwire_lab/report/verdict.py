"""Which contenders may be praised: speed and bytes count only for a model that learnt as much as uncompressed training.

In a comparison of equal steps, at most EQUAL_ACCURACY below uncompressed training counts as equal, because seeds differ
by more. In one of equal time the accuracy itself is the result, so anything below uncompressed training is less.
"""

EQUAL_ACCURACY = 0.005
LEARNT = 0.1  # the part of the way from guessing to perfect that a model must have gone to have learnt


def shortfall(accuracy: float | None, plain: float | None, plain_label: str, guess: float | None, mode: str) -> str:
    """Why a contender that ended well is not praised, in a few words; empty if it may be.

    `plain` is the accuracy of uncompressed training, None for that run itself and where it is not known.
    """
    if accuracy is None:
        return "" if plain is None else "has no accuracy"
    if guess is not None and accuracy < guess + LEARNT * (1.0 - guess):
        return f"did not learn: {100 * accuracy:.1f} %, guessing gives {100 * guess:.1f} %"
    tolerance = 0.0 if mode == "seconds" else EQUAL_ACCURACY
    if plain is not None and accuracy < plain - tolerance:
        return f"{100 * (plain - accuracy):.1f} points less accurate than {plain_label}"
    return ""
