"""Whether training recovers when the FFT chain drops less: theta lowered in the course of a run."""

from dataclasses import dataclass, replace

from thinwire.bench.claims_findings import Claim, Figures, Finding, percent, verdict
from thinwire.recipes.compressed import CompressedAverage
from thinwire.recipes.data import Data, load_images
from thinwire.recipes.recipe import Recipe
from thinwire.recipes.simulated import train_simulated

RECIPE = Recipe(model="mlp", model_options={"width": 32}, batch=16, steps=180, test_limit=2000)
SEEDS = (0, 1, 2)
THETA, DIAL = 0.995, 0.5
CODEC = f"feedback(keep=off) | fftsgd(theta={THETA})"


@dataclass(frozen=True)
class Recovery:
    """Test accuracies, means over seeds, of three runs that differ in what the chain drops."""

    plain: float
    constant: float
    lowered: float


def lowered_run(recipe: Recipe, data: Data, dial: float | None) -> float:
    """Accuracy with theta as it is, or multiplied by `dial` from a third of the run on."""
    average = CompressedAverage(CODEC, 4)

    def turn_dial(step: int, loss: float) -> None:
        if dial is not None and step == recipe.steps // 3:
            for slots in average.slots:
                for slot in slots.values():
                    slot.dial = dial

    return train_simulated(recipe, 4, average, data=data, on_step=turn_dial).accuracy


def recovery(recipe: Recipe = RECIPE, data: Data | None = None) -> Recovery:
    data = load_images(recipe.data) if data is None else data
    runs = []
    for seed in SEEDS:
        seeded = replace(recipe, seed=seed)
        plain = train_simulated(seeded, 4, data=data).accuracy
        runs.append((plain, lowered_run(seeded, data, None), lowered_run(seeded, data, DIAL)))
    return Recovery(*(sum(accuracies) / len(runs) for accuracies in zip(*runs, strict=True)))


def recovery_finding(found: Recovery) -> Finding:
    finding = Finding("recovery", "FFT: theta lowered in a run")
    rows = [
        ["uncompressed", percent(found.plain)],
        [f"theta = {THETA} throughout, no feedback", percent(found.constant)],
        [f"theta = {THETA}, from a third of the run on {THETA * DIAL:g}", percent(found.lowered)],
    ]
    caption = f"Test accuracy after {RECIPE.steps} steps of a small MLP, packaged Fashion-MNIST, 4 ranks, three seeds"
    finding.figures.append(Figures(caption, ("run", "accuracy"), rows))
    gap, left = found.plain - found.constant, found.plain - found.lowered
    finding.claims.append(
        Claim(
            "FFT",
            "accuracy recovers when theta is lowered",
            "recovers",
            f"uncompressed {percent(found.plain)}; theta = {THETA}: {percent(found.constant)}; lowered after a third:"
            f" {percent(found.lowered)}",
            verdict([left < gap, left < gap / 2]),
        )
    )
    return finding
