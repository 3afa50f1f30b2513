"""A look at the user's own training: when gradients become ready, and samples of them, without changing anything."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from thinwire.ddp.models import unwrapped
from thinwire.ddp.names import parameter_names
from thinwire.errors import WorldError
from thinwire.planner.figures import SAMPLE, is_telling, sample_of
from thinwire.planner.profile import FIRST_BUCKET, Layer, Model, bucketed

_UNSETTLED = 2  # steps before the first that counts: DDP sorts its buckets anew after the first one


@dataclass(frozen=True)
class StepTimes:
    """One step of one rank, in seconds from its beginning.

    Args:
        ready: For each bucket, when its last gradient is there.
        averaged: When backward ends, with the last average.
        whole: When the next step begins.
    """

    ready: tuple[float, ...]
    averaged: float
    whole: float


@dataclass(frozen=True)
class Observed:
    """What a rank has seen: the trained parameters in DDP's buckets, and the steps that count."""

    layers: tuple[Layer, ...]
    steps: tuple[StepTimes, ...]


class Observer:
    """Notes the times of some steps, and takes samples of the gradients of one of them before they are averaged.

    It only adds hooks to the model and takes them away again; DDP averages as it does without it. The times are those
    of this rank. A step begins with the first forward pass behind a backward pass that DDP has averaged, so that
    micro-batches under `no_sync` are a part of the step. What fails in a hook is kept in `failure`, and the training
    goes on.

    Args:
        model: The DDP model, also inside torch.compile or Lightning Fabric.
        ended: Called with the number of steps so far, when the forward pass of the next one begins.
        sample: Elements of a layer in its sample, at most.

    Examples:
        >>> observer = Observer(ddp_model)
        >>> while observer.steps < 5:
        ...     train_one_step()
        >>> model, samples = agreed_model([observer.observed()]), observer.samples
        >>> observer.close()
    """

    def __init__(self, model: nn.Module, ended: Callable[[int], None] | None = None, sample: int = SAMPLE) -> None:
        self.ddp = _ddp_model(model)
        self._trained = [
            (name, p) for name, p in parameter_names(self.ddp.module, self.ddp.parameters_to_ignore) if p.requires_grad
        ]
        self.samples: dict[str, Tensor] = {}
        self._settled = set[str]()  # the names of samples that need not be taken again
        self.steps = 0  # that have ended
        self.calls = 0  # of the model
        self.failure = ""
        self._ended, self._most = ended, sample
        self._began: float | None = None
        self._averages = False  # the backward pass behind the last forward pass
        self._ready: dict[str, float] = {}
        self._backward_end = 0.0
        self._queued = False
        self._found: list[tuple[dict[str, float], float, float]] = []  # ready times, end of backward, whole step
        self._hooks: list[Any] = [self.ddp.register_forward_pre_hook(self._on_forward)]
        for name, p in self._trained:
            self._hooks.append(p.register_post_accumulate_grad_hook(self._listener(name)))  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Remove the hooks; a second call does nothing."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _listener(self, name: str) -> Callable[[Tensor], None]:
        def on_gradient(parameter: Tensor) -> None:
            if not self._averages or self._began is None:
                return
            self._ready[name] = time.perf_counter() - self._began
            if self.steps >= _UNSETTLED - 1 and not self.failure:
                try:
                    self._sample(name, parameter.grad)
                except Exception as reason:  # whatever it is, the user's backward pass goes on
                    self.failure = f"{type(reason).__name__} at the gradient of {name}: {reason}"
            if not self._queued:
                self._queued = True
                engine = torch.autograd.Variable._execution_engine
                engine.queue_callback(lambda: engine.queue_callback(self._on_backward_end))  # behind DDP's own

        return on_gradient

    def _sample(self, name: str, gradient: Tensor | None) -> None:
        """Take a sample of a gradient that has none yet, or one that overflowed or had only zeros."""
        if name in self._settled or gradient is None or gradient.layout != torch.strided:
            return
        self.samples[name] = sample_of(gradient, self._most)
        if is_telling(self.samples[name]):
            self._settled.add(name)

    def _on_backward_end(self) -> None:
        self._queued = False
        self._backward_end = time.perf_counter() - (self._began or 0.0)

    def _on_forward(self, model: Any, given: Any) -> None:
        self.calls += 1
        if not torch.is_grad_enabled():
            return  # an evaluation: a part of the step
        now = time.perf_counter()
        self._averages = bool(self.ddp.require_backward_grad_sync)  # DDP also decides here
        if self._ready and self._began is not None:
            self._found.append((self._ready, self._backward_end, now - self._began))
            self._ready, self._queued, self._began = {}, False, None
            self.steps += 1
            if self._ended is not None:
                self._ended(self.steps)
                now = time.perf_counter()
        if self._began is None:
            self._began = now

    def layers(self) -> tuple[Layer, ...]:
        """The trained parameters in DDP's buckets: in the order of their gradients, up to the size of a bucket."""
        if not self._found:
            raise WorldError("no step of training has ended yet: observe at least one step, and begin the next.")
        ready = self._found[-1][0]
        ordered = sorted((item for item in self._trained if item[0] in ready), key=lambda item: ready[item[0]])
        found = [Layer(name, tuple(p.shape), 0, str(p.dtype).removeprefix("torch.")) for name, p in ordered]
        return bucketed(found, bucket_limits(self.ddp))

    def observed(self) -> Observed:
        """The steps of this rank; `agreed_model` makes one model of those of all ranks."""
        layers = self.layers()
        steps = []
        for times, averaged, whole in self._found[_UNSETTLED:] or self._found[-1:]:
            ready = [0.0] * (1 + max(layer.bucket for layer in layers))
            for layer in layers:
                ready[layer.bucket] = max(ready[layer.bucket], times.get(layer.name, 0.0))
            steps.append(StepTimes(tuple(ready), max(averaged, *ready), whole))
        return Observed(layers, tuple(steps))


def _ddp_model(model: nn.Module) -> DistributedDataParallel:
    inner = unwrapped(model)
    if not isinstance(inner, DistributedDataParallel):
        raise WorldError(f"only DistributedDataParallel models can be observed; got {type(model).__name__}.")
    return inner


def bucket_limits(model: DistributedDataParallel) -> list[int]:
    """The sizes of a model's buckets in bytes, the last one for all that follow.

    A shorter first bucket is only made with the default size (torch 2.9 to 2.13, nn/parallel/distributed.py).
    """
    listed = getattr(model, "bucket_bytes_cap_list", None)  # since torch 2.13
    if listed:
        return list(listed)
    cap = model.bucket_bytes_cap
    return [min(FIRST_BUCKET, cap), cap] if model.bucket_bytes_cap_default else [cap]


def check_plain(model: DistributedDataParallel) -> None:
    """Refuse a model whose gradients another hook averages than DDP itself: its steps are no plain ones."""
    if model._comm_hooks:
        hook = model._comm_hooks[0][0].__qualname__
        raise WorldError(
            f"the model has the communication hook {hook}, so that its steps are no plain ones; leave out"
            " thinwire.attach, or the other hook, while you ask for advice."
        )


def agreed_model(everyone: Sequence[Observed]) -> Model:
    """A step without the wait for the network, equal on all ranks: medians over steps, and of each the slowest rank.

    A rank also waits for gradients of the others, and where ranks share cores, another one is the last in each step. So
    each step is put together from all ranks, whose averages are there at the same moment: a bucket is ready when that
    moment has come on its last rank, and only the shortest wait of a rank is the network's. Layers are those of rank 0,
    whose buckets DDP takes. The gradients that DDP sent during backward have slowed it down; `measure.unloaded`
    estimates by how much.
    """
    layers = everyone[0].layers
    buckets = len(everyone[0].steps[0].ready)
    together = [_together(ranks, buckets) for ranks in zip(*(each.steps for each in everyone), strict=False)]
    ready = tuple(max(0.0, statistics.median(step.ready[b] for step in together)) for b in range(buckets))
    step = statistics.median(step.whole - (step.averaged - max(step.ready)) for step in together)
    return Model(layers, ready, max(step, max(ready, default=0.0)))


def _together(ranks: Sequence[StepTimes], buckets: int) -> StepTimes:
    """One step of all ranks, from the beginning of the first one."""
    averaged = max(each.averaged for each in ranks)
    ready = tuple(
        averaged + max(each.ready[b] - each.averaged for each in ranks if b < len(each.ready)) for b in range(buckets)
    )
    return StepTimes(ready, averaged, max(each.whole for each in ranks))
