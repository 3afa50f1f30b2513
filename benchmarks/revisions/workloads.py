"""A case as something to call, through public names of thinwire alone, so that it runs with any revision."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import thinwire
from benchmarks.revisions import models
from benchmarks.revisions.cases import GRADIVEQ, Case

WARM_UP, LEARNING = 2, 5  # calls: after two, DDP has sorted its buckets; a basis is learnt later
GRADIENTS = 3  # that differ, in turn: a basis cannot be learnt from samples that do not vary


@dataclass(frozen=True)
class Workload:
    """What is timed, and what ends it."""

    call: Callable[[], Any]
    close: Callable[[], None] = field(default=lambda: None)


def public(name: str) -> Any:
    """A public name of the installed revision."""
    if not hasattr(thinwire, name):
        raise AttributeError(f"thinwire {thinwire.__version__} has no public name {name}")
    return getattr(thinwire, name)


def build_workload(case: Case, rank: int) -> Workload:
    """Everything that the calls need is made here; errors of a revision that lacks something come from here."""
    makers = {"kernels": _kernel, "averages": _average, "steps": _steps}
    workload = makers[case.part](case, rank)
    for _ in range(LEARNING if case.codec == GRADIVEQ else WARM_UP):
        workload.call()
    return workload


def _kernel(case: Case, rank: int) -> Workload:
    """Messages of fixed size go into memory that is kept, as they do in an average."""
    x = torch.randn(case.numel, generator=torch.Generator().manual_seed(0))
    codec = public("Codec").parse(case.codec)
    if case.call == "simulate":
        simulate, steps = public("simulate"), _Steps()
        slots = simulate(codec, [x]).slots
        return Workload(lambda: simulate(codec, [x], slots=slots, step=steps.next()))
    message = codec.encode(x)
    if case.call == "decode":
        out = torch.empty_like(x)
        return Workload(lambda: codec.decode(message, case.numel, out=out))
    kept = message if codec.message_bytes(case.numel).exact else None
    return Workload(lambda: codec.encode(x, out=kept))


class _Steps:
    """Numbers of steps: 1, 2, 3, ..."""

    def __init__(self) -> None:
        self.step = 0

    def next(self) -> int:
        self.step += 1
        return self.step


def gradients(case: Case, rank: int) -> list[list[Tensor]]:
    """Those of some steps: rows near a space of 32 dimensions, the same on all ranks as in real layers, and noise."""
    width = 640 if case.numel % 640 == 0 else 128
    rows = case.numel // width
    shared = torch.randn(32, width, generator=torch.Generator().manual_seed(1))
    own = torch.Generator().manual_seed(100 + rank)

    def gradient() -> Tensor:
        return torch.randn(rows, 32, generator=own) @ shared / 6 + 0.1 * torch.randn(rows, width, generator=own)

    return [[gradient() for _ in range(case.tensors)] for _ in range(GRADIENTS)]


def _average(case: Case, rank: int) -> Workload:
    given, steps = gradients(case, rank), _Steps()
    weights = [torch.randn(t.shape, generator=torch.Generator().manual_seed(2)) for t in given[0]]
    outs = [torch.empty_like(t) for t in given[0]]
    if case.call == "average_gradients":
        return _average_gradients(case.codec, given, weights, outs)
    average, slots = public("average"), [public("Slot")() for _ in weights]
    codec = public("Codec").parse(case.codec)

    def call() -> None:
        step = steps.next()
        for x, slot, weight, out in zip(given[step % GRADIENTS], slots, weights, outs, strict=True):
            average(x, codec, slot=slot, step=step, weights=weight, out=out)

    return Workload(call)


def _average_gradients(codec: str, given: list[list[Tensor]], weights: list[Tensor], grads: list[Tensor]) -> Workload:
    """The gradients are copied into their places first, because they are averaged there."""
    average_gradients, state, steps = public("average_gradients"), public("GradientState")(), _Steps()
    model = nn.ParameterList(nn.Parameter(weight) for weight in weights)
    for parameter, grad in zip(model, grads, strict=True):
        parameter.grad = grad

    def call() -> None:
        torch._foreach_copy_(grads, given[steps.next() % GRADIENTS])
        average_gradients(model, codec, state)

    return Workload(call)


def _steps(case: Case, rank: int) -> Workload:
    network, batches = models.build(case.call, rank)
    model, steps = DistributedDataParallel(network), _Steps()
    handle = public("attach")(model, case.codec)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)

    def call() -> None:
        x, y = batches[steps.next() % len(batches)]
        scores = model(x)
        F.cross_entropy(scores.flatten(0, -2), y.flatten()).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad()

    return Workload(call, handle.close)
