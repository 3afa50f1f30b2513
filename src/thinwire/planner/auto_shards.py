"""What `auto` learns from plain steps of a model that FSDP shards."""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from thinwire.ddp.handle import Handle
from thinwire.ddp.names import parameter_names
from thinwire.fsdp.handle import FSDPHandle
from thinwire.outer.weights import local
from thinwire.planner.auto_budget import Budget
from thinwire.planner.auto_look import SAMPLE, Findings, Measuring, findings, not_worth
from thinwire.planner.auto_settings import AutoSettings
from thinwire.planner.choice import choose
from thinwire.planner.figures import sample_of
from thinwire.planner.measure import core_count, host_mark
from thinwire.planner.profile import Figures, Layer, Link, Machine, Model, Profile

_MIB = 1 << 20


def sharded(handle: Handle) -> FSDPHandle:
    """The handle of a model that FSDP shards."""
    assert isinstance(handle, FSDPHandle)
    return handle


class ShardLook:
    """Looks at the steps of a model that FSDP shards.

    FSDP waits for each reduction on the CPU, so the model of a step is simple: it computes, then it exchanges. The
    layers are the shards of this rank. Every group of ranks that average the same shards measures its link and codecs
    at the same time as the others; the slowest link and the largest errors count.
    """

    def __init__(self, handle: FSDPHandle, model: nn.Module, settings: AutoSettings) -> None:
        self._handle, self._settings = handle, settings
        self._model = weakref.ref(model)

    def begin(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def end(self, budget: Budget) -> Findings:
        everyone, world = self._handle.everyone, self._handle.reducing
        exchanged = budget.waited
        if (dense := not_worth(exchanged / budget.plain)) is not None:
            return dense
        measuring = Measuring(everyone, self._settings, budget)
        links = everyone.gathered(measuring.link(world), "the measurement of links")
        slowest: Link = max(links, key=lambda link: link.seconds("reduce", _MIB))
        compute = budget.plain - exchanged
        model = Model(self._layers(), (compute,), compute)
        profile = Profile(slowest, self._machine(), model, {}, world.ranks)
        own = measuring.with_codecs(profile, world, self._samples()).codecs
        codecs = worst(everyone.gathered(own, "the measurement of codecs"))
        choices = choose(replace(profile, codecs=codecs), self._settings.quality)
        return findings(choices, exchanged / budget.plain, measuring.spent())

    def _layers(self) -> tuple[Layer, ...]:
        shapes = {name: (tuple(p.shape), str(p.dtype).removeprefix("torch.")) for name, p in self._handle.layout}
        return tuple(Layer(name, shape, 0, dtype) for name, (shape, dtype) in shapes.items() if 0 not in shape)

    def _samples(self) -> dict[str, Tensor]:
        model = self._model()
        named = [] if model is None else parameter_names(model)
        found = {name: local(p.grad) for name, p in named if p.grad is not None}
        return {name: sample_of(gradient, SAMPLE) for name, gradient in found.items() if gradient.numel()}

    def _machine(self) -> Machine:
        marks = self._handle.everyone.gathered(host_mark(), "the measurement of the machine")
        device = self._handle.device.type
        mine = Machine(core_count(), marks.count(marks[0]), torch.get_num_threads(), device)
        machine: Machine = self._handle.everyone.gathered(mine, "the measurement of the machine")[0]
        return machine


def worst(everyone: Sequence[Mapping[str, Mapping[str, Figures]]]) -> dict[str, dict[str, Figures]]:
    """The figures of codecs that all ranks have measured: for each layer the slowest times and the largest errors."""
    common = [codec for codec in everyone[0] if all(codec in each for each in everyone)]
    return {
        codec: {layer: _worst([each[codec][layer] for each in everyone]) for layer in everyone[0][codec]}
        for codec in common
    }


def _worst(found: Sequence[Figures]) -> Figures:
    return Figures(*(max(column) for column in zip(*(vars(each).values() for each in found), strict=True)))
