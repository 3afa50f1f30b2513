"""The handle that `attach_outer` returns."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from thinwire._version import __version__
from thinwire.core.plan import Decision, Plan, PlanLike
from thinwire.ddp.advice import warn_uncompressed
from thinwire.ddp.arithmetic import warn_if_arithmetic_differs
from thinwire.ddp.callbacks import Callback
from thinwire.ddp.checkpoint_api import Checkpoints
from thinwire.ddp.checkpoint_load import load_engine
from thinwire.ddp.checkpoint_save import save_engine
from thinwire.ddp.consistency import check_agreement, new_run
from thinwire.ddp.engine import Engine
from thinwire.ddp.lane import Lane, end_forgotten, group_count
from thinwire.ddp.names import parameter_names
from thinwire.ddp.unhooked import not_copied
from thinwire.errors import CodecError, StateError, WorldError
from thinwire.outer.checkpoint import (
    LoadedOuter,
    checked_outer,
    save_outer,
    settings_text,
    warn_other_weights,
    weights_key,
)
from thinwire.outer.exchange import Exchange
from thinwire.outer.fragments import split
from thinwire.outer.metrics import RoundMetrics
from thinwire.outer.settings import OuterSettings, preset_name
from thinwire.outer.steps import StepHooks
from thinwire.outer.weights import Anchors, ModelBuffers, begin_equal, checksum, local
from thinwire.worlds.distributed import Distributed


class OuterHandle(Checkpoints):
    """What `attach_outer` returns: the exchanges, their metrics, and the state that belongs into checkpoints.

    `attach_outer` makes it; its arguments are explained there. `on_step` is a list of functions that are called with
    the `RoundMetrics` of every exchange, inside the step of the optimizer in which it is applied.

    Examples:
        >>> handle = thinwire.attach_outer(net, optimizer, "qsgd(bits=4)", every=2)
        >>> handle.on_step.append(lambda metrics: print(metrics.bytes_sent))
        >>> handle.use("qsgd(bits=8)")  # from the next exchange on
        >>> saved = handle.state_dict()
        >>> handle.load_state_dict(saved)
        >>> handle.synchronize()  # now, whatever the step: all ranks have equal weights
        0
        >>> handle.close()
    """

    _world: Distributed

    def __init__(
        self,
        model: nn.Module,
        trained: Sequence[tuple[str, Tensor]],
        optimizers: Sequence[torch.optim.Optimizer],
        settings: OuterSettings,
        *,
        group: dist.ProcessGroup | None,
        buffers: str,
        seed: int,
        check: int,
        scaler: Any,
        timeout: timedelta | None,
        measure_every: int,
    ) -> None:
        group = group or dist.group.WORLD
        self._world, self._timeout, self._trained = Distributed(group), timeout, {id(p) for _, p in trained}
        self._layout = [(name, local(p).to("meta")) for name, p in trained]
        self._frozen = [(n, local(p)) for n, p in parameter_names(model) if id(p) not in self._trained]
        self.engine = Engine.of(Plan.parse(settings.codec), self._layout, seed)
        self.engine.meter.every = measure_every
        # bytes of whole parameters: ranks with different shards must send the same parameters at the same time
        fragments = split([(name, p.numel() * p.element_size()) for name, p in trained], settings.fragments)
        anchors, kept = Anchors(trained, settings.outer), ModelBuffers(model, buffers)
        self._exchange = Exchange(self.engine, cast("Any", None), settings, fragments, anchors, kept, check)
        self._agree(scaler)
        begin_equal(self._world, anchors, [p for _, p in self._frozen], kept)
        self.engine.run = new_run(self._world)
        end_forgotten(self._world)
        device = anchors.values[0].device
        warn_if_arithmetic_differs(self._world, self.engine.codecs(), device)
        assert group is not None  # `Distributed` has checked it
        self._exchange.lane = Lane(group, device, timeout)
        check_agreement(self._world, {"lanes": 1}, "attach_outer", timeout)  # see Handle
        self.on_step: list[Callback] = []
        self._last: RoundMetrics | None = None
        self._hooks = StepHooks(optimizers, scaler, self._on_inner_step)
        warn_uncompressed(self.engine.plan, self.plan, stacklevel=4)

    @property
    def plan(self) -> list[Decision]:
        """What was decided for every parameter, and why."""
        return list(self.engine.decisions.values())

    @property
    def settings(self) -> OuterSettings:
        """The settings in force."""
        return self._exchange.settings

    @property
    def fragments(self) -> list[list[str]]:
        """The names of the parameters of each fragment."""
        return [[self._exchange.anchors.names[at] for at in which] for which in self._exchange.fragments]

    @property
    def outer(self) -> torch.optim.Optimizer:
        """The outer optimizer; to change its learning rate, do so alike on all ranks."""
        return self._exchange.anchors.optimizer

    @property
    def step(self) -> int:
        """Inner steps so far, with those that a GradScaler skipped."""
        return self._exchange.step

    def metrics(self) -> RoundMetrics | None:
        """The last exchange: bytes, ratios, times, drift; None before the first one."""
        return self._last

    def report(self) -> Any:
        """The plan and the last exchange as a Rich table; print it with rich.print."""
        from thinwire.ddp.display import report_table

        table = report_table(cast("Any", self))
        if self._last is not None:
            table.caption = (
                f"{table.caption}; {self._last.bytes_per_step:,.0f} bytes for each inner step,"
                f" drift {self._last.drift:.2f}"
            )
        return table

    def log_to(self, writer: Any, prefix: str = "thinwire") -> None:
        """Write the numbers of every exchange to `writer`, as `Handle.log_to` does; the step is the inner one."""
        from thinwire.ddp.display import step_logger

        self.on_step.append(step_logger(writer, prefix))

    def synchronize(self) -> int:
        """Apply what is under way and exchange everything now; returns the step.

        Every rank must call it after the same step. Afterwards all ranks have equal weights: call it before the last
        checkpoint or an evaluation.
        """
        check_agreement(self._world, {"the inner step": self.step}, "synchronize", self._timeout)
        self._ended(self._exchange.synchronize(self._world))
        return self.step

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """The model has the weights that all ranks agreed on last; afterwards this rank goes on from its own.

        For evaluations and exports between rounds. Do not train inside.
        """
        anchors = self._exchange.anchors
        own = [weights.clone() for weights in anchors.weights]
        _fill(anchors.weights, anchors.values)
        try:
            yield
        finally:
            _fill(anchors.weights, own)

    def use(self, plan: PlanLike) -> None:
        """Use another codec from the next exchange on; call it on all ranks after the same step.

        Residuals stay, and the new codec delivers them. `every` and the other settings stay.
        """
        if (preset := preset_name(plan)) is not None:
            codec = OuterSettings.of(preset).codec
            raise CodecError(f"use() changes the codec alone, and {preset} is a preset with settings; write {codec!r}.")
        new = Plan.parse(plan)
        check_agreement(self._world, {"the new plan": str(new), "the inner step": self.step}, "use", self._timeout)
        self._exchange.wait()
        self.engine.use(new, self._layout)
        warn_uncompressed(self.engine.plan, self.plan, stacklevel=3)

    def close(self) -> None:
        """End the exchanges, the thread and its group; the optimizer then trains this rank alone.

        What is under way is not applied: call `synchronize()` before.
        """
        self._hooks.remove()
        self._exchange.lane.leave()

    def state_dict(self) -> dict[str, Any]:
        """This rank's state. Save it on every rank, beside the model and the optimizer of that rank.

        Between rounds those differ. It waits for exchanges under way and stores their results.
        """
        outer = save_outer(self._exchange)
        mine = {weights_key(self._world.rank): checksum(self._exchange.anchors.weights)}
        return {**save_engine(self.engine, self._world), **mine, "outer": outer}

    def full_state_dict(self, timeout: timedelta | None = None) -> dict[str, Any]:
        """The state of all ranks in one dictionary, the same on each; every rank must call it after the same step.

        It has no weights of the ranks. Between rounds these differ, and a warning says so.
        """
        whole = super().full_state_dict(timeout)
        if len({whole[weights_key(rank)] for rank in range(self._world.ranks)}) > 1:
            warnings.warn(
                f"after step {self.step} every rank has weights of its own. If one rank saves the model for all, the"
                " steps of the others since the last exchange are lost: call handle.synchronize() before saving, or"
                " save the model on every rank.",
                RuntimeWarning,
                stacklevel=2,
            )
        return whole

    def load_distributed(self, folder: str | Path, key: str = "thinwire") -> None:
        """Not supported for outer steps: a StateError says what to do."""
        raise StateError(
            "outer steps cannot be loaded from a torch.distributed.checkpoint; save handle.state_dict() on every rank"
            " with torch.save, and load it with handle.load_state_dict()."
        )

    def _load(self, read: Callable[[], Any]) -> None:
        found: list[LoadedOuter] = []
        kept: list[Any] = []

        def checked() -> Any:
            saved = read()
            found.append(checked_outer(self._exchange, saved))
            kept.append(saved)
            return saved

        self._exchange.wait()
        load_engine(self.engine, self._world, checked, lambda: found[0].facts())
        found[0].apply(self._exchange)
        warn_other_weights(kept[0], self._world.rank, self._world.ranks, self._exchange.anchors.weights)

    def _on_inner_step(self) -> None:
        self._check_trained()
        self._ended(self._exchange.on_step(self._world))

    def _ended(self, rounds: Sequence[RoundMetrics]) -> None:
        for metrics in rounds:
            self._last = metrics
            for function in list(self.on_step):
                function(metrics)

    def _check_trained(self) -> None:
        """A parameter that is trained on each rank and never exchanged would differ for ever."""
        if self.step + 1 < self.settings.every or (self.step + 1) % self.settings.every:
            return
        strange = [p for p in self._hooks.parameters() if p.requires_grad and id(p) not in self._trained]
        if strange:
            raise WorldError(
                f"a parameter of shape {tuple(strange[0].shape)} is trained now and was not when outer steps were"
                " attached, so that it is not exchanged; close the handle and attach again after such a change."
            )

    def _agree(self, scaler: Any) -> None:
        engine, exchange = self.engine, self._exchange
        facts = {
            "the thinwire version": __version__,
            "the plan": str(engine.plan),
            "the parameters": [(name, tuple(p.shape), str(p.dtype)) for name, p in self._layout],
            "the frozen parameters": [(name, tuple(p.shape), str(p.dtype)) for name, p in self._frozen],
            "the settings of outer steps": settings_text(exchange),
            "the buffers": list(exchange.buffers.names),
            "the seed": engine.seed,
            "check": exchange.check,
            "having a scaler": scaler is not None,
            "the number of process groups": group_count(self._world.group),
        }
        check_agreement(self._world, facts, "attach_outer", self._timeout)

    def __reduce__(self) -> Any:
        raise not_copied()


@torch.no_grad()
def _fill(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)
