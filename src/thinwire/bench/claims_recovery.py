"""Whether training recovers when the FFT chain drops less: theta lowered in the middle of a run."""

from dataclasses import dataclass, replace

from thinwire.bench.claims_findings import Claim, Figures, Finding, percent, verdict
from thinwire.recipes.compressed import CompressedAverage
from thinwire.recipes.data import Data, load_images
from thinwire.recipes.recipe import Recipe
from thinwire.recipes.simulated import train_simulated

RECIPE = Recipe(model="vgg-tiny", batch=16, steps=160, lr=0.02, schedule="constant", test_limit=1000)
THETA, DIAL = 0.995, 0.5
CODEC = f"feedback(keep=off) | fftsgd(theta={THETA})"


@dataclass(frozen=True)
class Recovery:
    """Test accuracies of three runs that differ in what the chain drops."""

    plain: float
    constant: float
    lowered: float


def lowered_run(recipe: Recipe, data: Data, dial: float | None) -> float:
    """Accuracy with theta as it is, or multiplied by `dial` from the middle of the run on."""
    average = CompressedAverage(CODEC, 4)

    def turn_dial(step: int, loss: float) -> None:
        if dial is not None and step == recipe.steps // 2:
            for slots in average.slots:
                for slot in slots.values():
                    slot.dial = dial

    return train_simulated(recipe, 4, average, data=data, on_step=turn_dial).accuracy


def recovery(recipe: Recipe = RECIPE, data: Data | None = None) -> Recovery:
    data = load_images(recipe.data) if data is None else data
    plain = train_simulated(replace(recipe), 4, data=data).accuracy
    return Recovery(plain, lowered_run(recipe, data, None), lowered_run(recipe, data, DIAL))


def recovery_finding(found: Recovery) -> Finding:
    finding = Finding("recovery", "FFT: theta lowered in the middle of a run")
    rows = [
        ["uncompressed", percent(found.plain)],
        [f"theta = {THETA} throughout, no feedback", percent(found.constant)],
        [f"theta = {THETA}, from the middle on {THETA * DIAL:g}", percent(found.lowered)],
    ]
    caption = f"Test accuracy after {RECIPE.steps} steps of a small CNN on Fashion-MNIST, 4 ranks, one seed"
    finding.figures.append(Figures(caption, ("run", "accuracy"), rows))
    gap, left = found.plain - found.constant, found.plain - found.lowered
    finding.claims.append(
        Claim(
            "FFT",
            "accuracy recovers when theta is lowered",
            "recovers",
            f"uncompressed {percent(found.plain)}; theta = {THETA}: {percent(found.constant)}; lowered half-way:"
            f" {percent(found.lowered)}",
            verdict([left < gap / 2]),
        )
    )
    return finding
