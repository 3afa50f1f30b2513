"""Whether training recovers when the FFT chain drops less: theta lowered in the course of a run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.claims.findings import Claim, Figures, Finding, percent, verdict
from thinwire_lab.recipes.compressed import CompressedAverage
from thinwire_lab.recipes.data import Data, load_images
from thinwire_lab.recipes.recipe import Recipe
from thinwire_lab.recipes.simulated import train_simulated

THETA, DIAL = 0.995, 0.5
CODEC = f"feedback(keep=off) | fftsgd(theta={THETA}, transform=always)"


@dataclass(frozen=True)
class Setting:
    """A training, and the shares of it after which theta is lowered; short runs are noisy, so there are several."""

    title: str
    recipe: Recipe
    seeds: Sequence[int]
    moments: Sequence[float]


SETTINGS = (
    Setting(
        "CNN, constant rate",
        Recipe(model="vgg-tiny", batch=16, steps=160, schedule="constant", test_limit=1000),
        (0, 1),
        (1 / 2,),
    ),
    Setting(
        "MLP, falling rate",
        Recipe(model="mlp", model_options={"width": 32}, batch=16, steps=180, test_limit=2000),
        (0, 1, 2),
        (1 / 2, 1 / 3),
    ),
)


@dataclass(frozen=True)
class Recovery:
    """Test accuracies of each seed: uncompressed, with theta as it is, and with theta lowered at a moment."""

    title: str
    moment: float
    plain: list[float]
    constant: list[float]
    lowered: list[float]

    @property
    def regained(self) -> float:
        """The share of the lost accuracy that lowering theta gives back."""
        lost = sum(self.plain) - sum(self.constant)
        return (sum(self.lowered) - sum(self.constant)) / lost if lost > 0 else float("nan")


def compressed_run(recipe: Recipe, data: Data, moment: float | None) -> float:
    """Accuracy with theta as it is, or multiplied by DIAL from this share of the run on."""
    average = CompressedAverage(CODEC, 4)

    def turn_dial(step: int, loss: float) -> None:
        if moment is not None and step == int(recipe.steps * moment):
            for slots in average.slots:
                for slot in slots.values():
                    slot.dial = DIAL

    return train_simulated(recipe, 4, average, data=data, on_step=turn_dial).accuracy


def recoveries(settings: Sequence[Setting] = SETTINGS, data: Data | None = None) -> list[Recovery]:
    found = []
    for setting in settings:
        images = load_images(setting.recipe.data) if data is None else data
        recipes = [replace(setting.recipe, seed=seed) for seed in setting.seeds]
        plain = [train_simulated(recipe, 4, data=images).accuracy for recipe in recipes]
        constant = [compressed_run(recipe, images, None) for recipe in recipes]
        for moment in setting.moments:
            lowered = [compressed_run(recipe, images, moment) for recipe in recipes]
            found.append(Recovery(setting.title, moment, plain, constant, lowered))
    return found


def recovery_finding(found: Sequence[Recovery]) -> Finding:
    finding = Finding("recovery", "FFT: theta lowered in a run")
    finding.explanation = (
        f"theta = {THETA} without feedback, lowered to {THETA * DIAL:g} at a moment of the run; packaged Fashion-MNIST,"
        " 4 ranks. These are short trainings, stopped while accuracy still rises."
    )
    rows = [
        [r.title, f"{r.moment:.2f}", _each(r.plain), _each(r.constant), _each(r.lowered), f"{100 * r.regained:.0f} %"]
        for r in found
    ]
    header = ("training", "lowered at", "uncompressed", f"theta = {THETA}", "lowered", "regained")
    finding.figures.append(
        Figures("Test accuracy of each seed, and the share of the gap that is regained", header, rows)
    )
    measured = "; ".join(f"{r.title}, lowered at {r.moment:.2f} of the run: {100 * r.regained:.0f} %" for r in found)
    finding.claims.append(
        Claim(
            "FFT",
            "accuracy recovers when theta is lowered",
            "recovers",
            f"share of the lost accuracy that comes back (the rule here: at least half): {measured}",
            verdict([r.regained >= 0.5 for r in found]),
        )
    )
    finding.losses += [
        f"{r.title}, theta lowered at {r.moment:.2f} of the run: accuracy ended at {_each(r.lowered)} (by seed);"
        f" with theta = {THETA} throughout at {_each(r.constant)}, uncompressed at {_each(r.plain)}."
        for r in found
        if not r.regained >= 0.5
    ]
    return finding


def _each(accuracies: Sequence[float]) -> str:
    return ", ".join(percent(accuracy) for accuracy in accuracies)
