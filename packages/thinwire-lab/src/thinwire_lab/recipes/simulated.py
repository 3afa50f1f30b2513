"""Data-parallel training of many ranks in one process, for experiments on convergence and for recording gradients.

Every simulated rank computes a gradient of the same weights on its own batch, the one it would get in a real run; a
function supplied by the caller makes one gradient of all of them; one optimiser takes the step.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from thinwire import Plan
from thinwire_lab.recipes.data import Data
from thinwire_lab.recipes.errors import RecipeError
from thinwire_lab.recipes.evaluation import evaluate
from thinwire_lab.recipes.recipe import (
    Batches,
    Recipe,
    fresh_model,
    learning_rate,
    load_data,
    loss_of,
    make_optimizer,
    set_learning_rate,
)

Gradients = dict[str, Tensor]  # by the parameter's name
Average = Callable[[Sequence[Gradients], Mapping[str, Tensor]], Mapping[str, Tensor]]
"""(gradients of every rank, current weights) -> the averaged gradients."""


@dataclass(frozen=True)
class SimulatedRun:
    """The result of a simulated training: test figures at the end, mean training loss of every step."""

    accuracy: float
    test_loss: float
    losses: list[float]
    model: nn.Module


@dataclass(frozen=True)
class RecordedStep:
    """The gradients of all ranks at one step and the weights they belong to, both before the step is taken."""

    step: int
    gradients: list[Gradients]
    weights: Gradients


def mean(gradients: Sequence[Gradients], weights: Mapping[str, Tensor]) -> Gradients:
    """The plain average, against which compressed ones are judged."""
    return {name: torch.stack([rank[name] for rank in gradients]).mean(dim=0) for name in weights}


class Simulation:
    """The state of a simulated run between its two moments: gradients are there, the step is taken."""

    def __init__(self, recipe: Recipe, ranks: int, data: Data | None = None, plan: Plan | None = None) -> None:
        if ranks < 1:
            raise RecipeError(f"a simulation needs at least 1 rank, not {ranks}.")
        self.recipe = recipe
        self.data = data if data is not None else load_data(recipe)
        self.model = fresh_model(recipe, self.data)
        self.optimizer = make_optimizer(recipe, self.model, plan)
        self.parameters = dict(self.model.named_parameters())
        self.batches = [
            Batches(self.data.train, batch=recipe.batch, seed=recipe.seed, rank=rank, ranks=ranks)
            for rank in range(ranks)
        ]

    @property
    def weights(self) -> Gradients:
        return {name: parameter.detach() for name, parameter in self.parameters.items()}

    def gradients(self, step: int) -> tuple[list[Gradients], float]:
        """Every rank's gradients at this step, and the mean of their losses."""
        found: list[Gradients] = []
        total = 0.0
        for batches in self.batches:
            loss = loss_of(self.model, *batches.at(step))
            gradients = torch.autograd.grad(loss, list(self.parameters.values()))
            found.append(dict(zip(self.parameters, gradients, strict=True)))
            total += loss.item()
        return found, total / len(self.batches)

    def apply(self, step: int, averaged: Mapping[str, Tensor]) -> None:
        """Takes the step with these gradients."""
        if averaged.keys() != self.parameters.keys():
            differing = ", ".join(sorted(averaged.keys() ^ self.parameters.keys()))
            raise RecipeError(f"averaging must return one gradient for every parameter; it differs in {differing}.")
        for name, parameter in self.parameters.items():
            parameter.grad = averaged[name].view_as(parameter)
        if self.recipe.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        set_learning_rate(self.optimizer, learning_rate(self.recipe, step))
        self.optimizer.step()


def train_simulated(
    recipe: Recipe,
    ranks: int = 4,
    average: Average = mean,
    *,
    data: Data | None = None,
    on_step: Callable[[int, float], None] | None = None,
    plan: Plan | None = None,
) -> SimulatedRun:
    """Trains on `ranks` simulated ranks; equal recipes and equal averaging give equal bits.

    Where the chains of `plan`, which `average` applies, carry momentum, the optimiser has none.
    """
    simulation = Simulation(recipe, ranks, data, plan)
    losses: list[float] = []
    for step in range(recipe.steps):
        gradients, loss = simulation.gradients(step)
        simulation.apply(step, average(gradients, simulation.weights))
        losses.append(loss)
        if on_step is not None:
            on_step(step + 1, loss)
    result = evaluate(simulation.model, simulation.data.test, limit=recipe.test_limit)
    return SimulatedRun(result.accuracy, result.loss, losses, simulation.model)


def record_gradients(
    recipe: Recipe, *, ranks: int = 4, every: int = 1, start: int = 0, data: Data | None = None
) -> Iterator[RecordedStep]:
    """Real gradients along a plainly averaged training: those of step `start` and every `every`-th after it."""
    simulation = Simulation(recipe, ranks, data)
    for step in range(recipe.steps):
        gradients, _ = simulation.gradients(step)
        if step >= start and (step - start) % every == 0:
            yield RecordedStep(step, gradients, {name: weight.clone() for name, weight in simulation.weights.items()})
        simulation.apply(step, mean(gradients, simulation.weights))
