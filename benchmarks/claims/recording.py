"""Gradients of real trainings, recorded once for all measurements."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from thinwire.core.plan import SMALL
from thinwire_lab.recipes.data import Data, load_images, load_text
from thinwire_lab.recipes.recipe import RECIPES, Recipe
from thinwire_lab.recipes.simulated import RecordedStep, mean, record_gradients

RANKS, WIDE_RANKS = 4, 16
WIDE_START, WIDE_STEPS = 12, 12
CNN = Recipe(model="resnet", model_options={"width": 16, "blocks": 1}, batch=8, steps=540)
TRANSFORMER = replace(RECIPES["text-tiny"], steps=280)


@dataclass(frozen=True)
class Recording:
    """The tensors that a plan would compress: averages of every step, and all ranks' gradients of a few.

    `wide` comes from a run of its own with more ranks, in which steps follow each other, so that residuals can grow.
    """

    name: str
    series: dict[str, Tensor]  # [steps, *shape]
    weights: dict[str, Tensor]  # at the last step
    wide: list[RecordedStep]

    @property
    def numel(self) -> int:
        return sum(weight.numel() for weight in self.weights.values())

    @property
    def steps(self) -> int:
        return len(next(iter(self.series.values())))

    def last(self) -> Tensor:
        """The last averaged gradient of all tensors, as one vector."""
        return torch.cat([series[-1].reshape(-1) for series in self.series.values()])


def compressible(weight: Tensor) -> bool:
    return weight.dim() >= 2 and weight.numel() >= SMALL


def record(name: str, recipe: Recipe, data: Data) -> Recording:
    """Train twice: long with a few ranks, short with many."""
    averages: dict[str, list[Tensor]] = {}
    weights: dict[str, Tensor] = {}
    for step in record_gradients(recipe, ranks=RANKS, data=data):
        weights = {key: weight for key, weight in step.weights.items() if compressible(weight)}
        for key, gradient in mean(step.gradients, weights).items():
            averages.setdefault(key, []).append(gradient)
    short = replace(recipe, steps=WIDE_START + WIDE_STEPS)
    wide = list(record_gradients(short, ranks=WIDE_RANKS, start=WIDE_START, data=data))
    return Recording(name, {key: torch.stack(each) for key, each in averages.items()}, weights, wide)


def record_all(images: str, text: str | None) -> list[Recording]:
    """A small CNN on images, and, if there is a text, a small transformer on it."""
    recordings = [record(f"CNN on {Path(images).name}", CNN, load_images(images))]
    if text is not None:
        data = load_text(text, context=TRANSFORMER.context)
        recordings.append(record(f"transformer on {Path(text).name}", TRANSFORMER, data))
    return recordings
