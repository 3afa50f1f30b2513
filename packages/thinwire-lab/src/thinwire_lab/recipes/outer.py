"""Outer steps of simulated ranks: what `thinwire.attach_outer` does in each process, here for all ranks in turn.

Settings, anchors, fragments and outer optimizers are the library's own; only the exchange is simulated.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from thinwire.outer.fragments import split
from thinwire.outer.settings import OuterSettings
from thinwire.outer.weights import Anchors
from thinwire_lab.recipes.compressed import CompressedAverage
from thinwire_lab.recipes.data import Data
from thinwire_lab.recipes.recipe import (
    Batches,
    Recipe,
    fresh_model,
    learning_rate,
    loss_of,
    make_optimizer,
    set_learning_rate,
)

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


@dataclass
class _Flight:
    fragment: int
    due: int
    means: list[list[Tensor]]  # of each rank


class OuterSimulation:
    """Ranks that train alone and exchange differences of weights, as `settings` say.

    Buffers are left alone: the packaged models have none. `average.sent` counts the bytes of rank 0.
    """

    def __init__(
        self, recipe: Recipe, ranks: int, settings: OuterSettings, data: Data, make: MakeOptimizer | None = None
    ) -> None:
        self.recipe, self.settings = recipe, settings
        first = fresh_model(recipe, data)
        self.models = [copy.deepcopy(first) for _ in range(ranks)]
        self.optimizers = [make(m) if make else make_optimizer(recipe, m) for m in self.models]
        self.batches = [
            Batches(data.train, batch=recipe.batch, seed=recipe.seed, rank=rank, ranks=ranks) for rank in range(ranks)
        ]
        named = [list(m.named_parameters()) for m in self.models]
        self.anchors = [Anchors(pairs, settings.outer) for pairs in named]
        self.fragments = split([(name, p.nbytes) for name, p in named[0]], settings.fragments)
        self.average = CompressedAverage(settings.codec, ranks, recipe.seed)
        self.step = 0
        self._flights: list[_Flight] = []

    def train_step(self) -> float:
        """One inner step of every rank and the exchanges that are due; the mean of the ranks' losses."""
        total = 0.0
        for model, optimizer, batches in zip(self.models, self.optimizers, self.batches, strict=True):
            optimizer.zero_grad()
            loss = loss_of(model, *batches.at(self.step))
            loss.backward()  # type: ignore[no-untyped-call]
            if self.recipe.clip:
                nn.utils.clip_grad_norm_(model.parameters(), self.recipe.clip)
            set_learning_rate(optimizer, learning_rate(self.recipe, self.step))
            optimizer.step()
            total += loss.item()
        self.step += 1
        self._land(self.step)  # before anything is sent, as in the library
        for fragment in range(len(self.fragments)):
            if self.settings.sends(self.step, fragment):
                self._send(fragment, self.step + self.settings.overlap)
        self._land(self.step)
        return total / len(self.models)

    def synchronize(self) -> None:
        """Apply what is under way and exchange everything: all ranks end with equal weights."""
        self._land(None)
        for fragment in range(len(self.fragments)):
            self._send(fragment, self.step)
        self._land(None, mix=1.0)

    def common(self) -> nn.Module:
        """A model with the weights on which the ranks agreed last."""
        model = copy.deepcopy(self.models[0])
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), self.anchors[0].values, strict=True):
                parameter.copy_(value)
        return model

    def _send(self, fragment: int, due: int) -> None:
        which = self.fragments[fragment]
        names = [self.anchors[0].names[at] for at in which]
        gradients = [dict(zip(names, anchors.differences(which), strict=True)) for anchors in self.anchors]
        weights = {name: self.anchors[0].values[at] for name, at in zip(names, which, strict=True)}
        mean = self.average(gradients, weights)
        self._flights.append(_Flight(fragment, due, [[mean[name].clone() for name in names] for _ in self.anchors]))

    def _land(self, step: int | None, mix: float | None = None) -> None:
        while self._flights and (step is None or self._flights[0].due <= step):
            flight = self._flights.pop(0)
            for anchors, means in zip(self.anchors, flight.means, strict=True):
                anchors.apply(self.fragments[flight.fragment], means, self.settings.mix if mix is None else mix)
