"""The headline cards of the page: who is ahead, by how much, and whose speed does not count.

Nobody is praised whose model learnt less than uncompressed training; see `verdict`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from thinwire_lab.report.contenders import Contender, plain_contender, ranked
from thinwire_lab.report.verdict import EQUAL_ACCURACY
from thinwire_lab.report.wording import join_words, show_bytes, show_percent, show_seconds, show_times


@dataclass(frozen=True)
class Card:
    """One figure and one sentence; `words` is HTML."""

    what: str
    figure: str
    words: str
    kind: str = ""  # "bad", or "grey" for what does not count

    def html(self) -> str:
        return (
            f'<div class="card {self.kind}"><p class="what">{escape(self.what)}</p>'
            f'<p class="figure">{escape(self.figure)}</p><p>{self.words}</p></div>'
        )


def headline_cards(contenders: Sequence[Contender]) -> str:
    """The first card is the accuracy at equal time, or the time to the target, where there is one of them."""
    plain = plain_contender(contenders)
    praised = [c for c in contenders if c.standing.runs and not c.standing.shortfall]
    cards = [
        *accuracy_card(praised, plain),
        *target_card(contenders, praised, plain),
        *speed_card(praised, plain),
        *bytes_card(praised, plain),
        *uncounted_card(contenders),
        *losers_card(contenders, plain),
    ]
    return "\n".join(card.html() for card in cards)


def accuracy_card(praised: Sequence[Contender], plain: Contender | None) -> list[Card]:
    """The highest accuracy after equal time; comparisons of equal steps have no such card."""
    first = next(iter(ranked(praised, lambda s: s.accuracy.mean if s.accuracy else None)), None)
    if first is None or first.standing.accuracy is None or first.logs[0].run.seconds is None:
        return []
    what = f"Accuracy after {first.logs[0].run.seconds:g} s of training"
    figure = show_percent(first.standing.accuracy.mean)
    if first is plain:
        return [Card(what, figure, f"with {name(first)}: nobody is more accurate in the same time.", "bad")]
    base = plain.standing.accuracy if plain else None
    than = f"; {name(plain)} reaches {show_percent(base.mean)} in the same time" if plain and base else ""
    return [Card(what, figure, f"with {name(first)}{than}.")]


def target_card(contenders: Sequence[Contender], praised: Sequence[Contender], plain: Contender | None) -> list[Card]:
    """Who is first at the accuracy that was asked for."""
    target = contenders[0].logs[0].run.target_accuracy if contenders else None
    if target is None or not any(c.standing.runs for c in contenders):
        return []
    what = f"Time to {100 * target:g} % accuracy"
    first = next(iter(ranked(praised, lambda s: -s.seconds_to_target if s.seconds_to_target else None)), None)
    if first is None:
        return [Card(what, "not reached", "No contender reaches it with all its seeds.", "bad")]
    beside = ""
    if plain is not None and plain is not first:
        base = plain.standing.seconds_to_target
        beside = f"; {name(plain)} {'does not reach it' if base is None else f'takes {show_seconds(base)}'}"
    return [Card(what, show_seconds(first.standing.seconds_to_target), f"of training with {name(first)}{beside}.")]


def speed_card(praised: Sequence[Contender], plain: Contender | None) -> list[Card]:
    """The fastest of those that learnt as much as uncompressed training, PyTorch's hooks among them."""
    others = [c for c in praised if c is not plain]
    first = next(iter(ranked(others, lambda s: s.speed_up)), None)
    if plain is None or plain.standing.mean_seconds is None:
        return []
    fairly = at_equal_accuracy(plain)
    if first is None or (first.standing.speed_up or 0.0) <= 1:
        return [Card("Fastest", "none", f"No contender is faster than {name(plain)} here{fairly}.", "bad")]
    words = f"as fast as {name(plain)} over the whole training with {name(first)}{accuracy_of(first)}{fairly}."
    return [Card("Fastest", show_times(first.standing.speed_up), words)]


def bytes_card(praised: Sequence[Contender], plain: Contender | None) -> list[Card]:
    others = [c for c in praised if c is not plain]
    return [
        Card("Fewest bytes", show_times(c.standing.wire_ratio), f"fewer than fp32 with {name(c)}"
             f"{accuracy_of(c)}{at_equal_accuracy(plain)}: {show_bytes(c.standing.bytes_per_step)} a step.")
        for c in ranked(others, lambda s: s.wire_ratio)[:1]
    ]  # fmt: skip


def at_equal_accuracy(plain: Contender | None) -> str:
    """What the ones that are praised have in common."""
    if plain is None or plain.standing.accuracy is None:
        return ""
    if plain.logs[0].run.mode == "seconds":
        return f", at least the accuracy of {name(plain)}"
    return f", at equal accuracy (at most {100 * EQUAL_ACCURACY:g} points lower)"


def uncounted_card(contenders: Sequence[Contender]) -> list[Card]:
    """Those who are fast and did not learn as much, each with the reason."""
    fast = [c for c in contenders if c.standing.shortfall and (c.standing.speed_up or 0.0) > 1]
    if not fast:
        return []
    words = "; ".join(f"{name(c)} ({show_times(c.standing.speed_up)}): {escape(c.standing.shortfall)}" for c in fast)
    return [Card("Fast, but it does not count", str(len(fast)), f"{words}.", "grey")]


def losers_card(contenders: Sequence[Contender], plain: Contender | None) -> list[Card]:
    slow = [c for c in contenders if c.standing.speed_up is not None and c.standing.speed_up < 1 and c is not plain]
    if plain is None or not slow:
        return []
    verb = "is" if len(slow) == 1 else "are"
    words = f"{join_words([name(c) for c in slow])} {verb} slower over the whole training than {name(plain)}."
    return [Card("Slower than no compression", str(len(slow)), words, "bad")]


def accuracy_of(c: Contender) -> str:
    return f" ({show_percent(c.standing.accuracy.mean)})" if c.standing.accuracy else ""


def name(c: Contender) -> str:
    return f"<b>{escape(c.label)}</b>"
