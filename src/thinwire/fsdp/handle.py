"""The handle of a model that FSDP2 trains."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from thinwire._version import __version__
from thinwire.core.plan import Decision, Plan, PlanLike
from thinwire.ddp.advice import warn_optimizer, warn_uncompressed
from thinwire.ddp.arithmetic import warn_if_arithmetic_differs
from thinwire.ddp.consistency import check_agreement, new_run
from thinwire.ddp.engine import Engine, names_of
from thinwire.ddp.handle import Handle
from thinwire.ddp.reduction import check_reduction
from thinwire.errors import WorldError
from thinwire.fsdp.checkpoint import ShardedCheckpoints
from thinwire.fsdp.groups import Mesh, ParameterGroup, Passes, unknown_torch
from thinwire.fsdp.replicas import ReplicaGroup, is_sum
from thinwire.fsdp.steps import Steps
from thinwire.worlds.distributed import Distributed


class FSDPHandle(ShardedCheckpoints, Handle):
    """The handle of a model that FSDP2 trains with replicas: what they send to each other is compressed.

    Shards stay as they are, and so do the collectives inside a replica.
    """

    _world: Distributed

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        groups: Sequence[ParameterGroup],
        mesh: Mesh,
        *,
        seed: int,
        start: int,
        check: int,
        scaler: Any,
        headroom: bool,
        timeout: timedelta | None,
        measure_every: int,
        optimizer: Any,
        reduction: str | None,
    ) -> None:
        self._groups, self._mesh, self._timeout, self._headroom = groups, mesh, timeout, headroom
        self._passes = Passes(model)
        self._layout = [entry for group in groups for entry in group.layout()]
        self._trained = {name for group in groups for name, m in group.members if m.sharded_param.requires_grad}
        self._optimizer = optimizer
        self._world = Distributed(_group_of(mesh.ranks, timeout))
        self.engine = self._engine(plan, seed, start)
        self.engine.reduction, self.engine.skips = reduction, scaler is not None
        self.engine.meter.every = measure_every
        self._check_plan(self.engine.decisions)
        self._agree(check)
        self.engine.run = new_run(self._world)
        self._reducing = Distributed(self._reducing_group(timeout))
        self._compare_arithmetic = partial(warn_if_arithmetic_differs, self._reducing, device=self.device)
        self._compare_arithmetic(self.engine.codecs())
        ranks = tuple(dist.get_process_group_ranks(self._reducing.group))
        self._steps = Steps(self.engine, self._reducing, self._world, check=check, scaler=scaler, replicas=ranks)
        self._callbacks = self._steps.callbacks
        self._callbacks.watch(model)
        self._current: tuple[ParameterGroup, Sequence[tuple[str, Any]]] | None = None
        self._calls = 0
        self._failure: Exception | None = None
        self._warn(stacklevel=6)
        self._enter()
        self._passes.follow(self._steps.on_pass)

    def _engine(self, plan: Plan, seed: int, start: int) -> Engine:
        return Engine.of(plan, self._layout, seed, start)

    def _check_plan(self, decisions: Mapping[str, Decision]) -> None:
        """Refuse a plan that cannot work here."""

    def _reducing_group(self, timeout: timedelta | None) -> dist.ProcessGroup:
        """The group over which gradients are compressed."""
        assert self._mesh.replicas is not None
        return self._own_group(self._mesh.replicas, timeout)

    def _own_group(self, group: dist.ProcessGroup, timeout: timedelta | None) -> dist.ProcessGroup:
        """The group of the mesh, or one that waits for another time."""
        return group if timeout is None else _new_group(dist.get_process_group_ranks(group), timeout)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        device: torch.device = self._groups[0].members[0][1].sharded_param.device
        return device

    @property
    def everyone(self) -> Distributed:
        """All ranks that train the model."""
        return self._world

    @property
    def reducing(self) -> Distributed:
        """The ranks between which gradients are compressed."""
        return self._reducing

    @property
    def layout(self) -> list[tuple[str, Tensor]]:
        """The shards of the trained parameters, without memory."""
        return self._layout

    # Where FSDP calls.

    def _enter(self) -> None:
        assert self._mesh.replicas is not None
        replicas = ReplicaGroup(self._mesh.replicas, self._on_all_reduce)
        for group in self._groups:
            group.replace_replicas(replicas)
            group.follow(self._on_group)

    def _leave(self) -> None:
        for group in self._groups:
            group.restore(self._mesh.replicas)
        self._passes.restore()

    def _on_group(self, group: ParameterGroup) -> Callable[[], None]:
        """FSDP begins to reduce a group; the returned function checks that it came here to do so."""
        if self._failure is not None:
            raise self._failure
        reduced, calls = group.reduced(), self._calls
        for name, _ in reduced:
            if name not in self._trained:
                raise WorldError(
                    f"{name} has a gradient, and was frozen when thinwire was attached; after requires_grad_(True) call"
                    " handle.close() and attach again, with an empty memory."
                )
        expected = bool(reduced) and self._is_reduced(group)
        self._current = (group, reduced)

        def leave() -> None:
            self._current = None
            if self._failure is not None:
                raise self._failure
            if expected and self._calls == calls:
                raise unknown_torch("a reduction of its own")

        return leave

    def _is_reduced(self, group: ParameterGroup) -> bool:
        """Whether FSDP will reduce the group over the ranks between which thinwire compresses."""
        return bool(group.inner.reduce_grads and group.inner.all_reduce_grads)

    def _on_all_reduce(self, buffer: Tensor, op: Any) -> None:
        self._called(lambda group, reduced: self._average(buffer, is_sum(op), group, reduced))

    def _called(self, reduce: Callable[[ParameterGroup, Sequence[tuple[str, Any]]], None]) -> None:
        """FSDP reduces gradients. Torch would hide an error of a group that it does not know behind one of its own: it
        is raised as soon as FSDP has done with the parameter group."""
        if self._current is None:
            raise unknown_torch("a reduction outside of a parameter group")
        self._calls += 1
        try:
            if not self._headroom:
                reduce(*self._current)
        except Exception as reason:
            self._failure = reason

    def _average(self, buffer: Tensor, summed: bool, group: ParameterGroup, reduced: Sequence[tuple[str, Any]]) -> None:
        mean = buffer.clone() if summed else buffer  # FSDP changes sums; a skipped step needs the mean
        pieces = group.gradients(mean, reduced)
        with self._steps.reducing(names_of(pieces)):
            self.engine.average(pieces, self._reducing, mean)
            self._steps.note(mean)
        if summed:
            torch.mul(mean, self._reducing.ranks, out=buffer)

    # What users call.

    @property
    def headroom(self) -> bool:
        return self._headroom

    @property
    def check(self) -> int:
        return self._steps.check

    def use(self, plan: PlanLike) -> None:
        new = check_reduction(self.engine.reduction, Plan.parse(plan))
        self._check_plan(self.engine.decided(new, self._layout))
        check_agreement(self._world, {"the new plan": str(new), "the step": self.engine.step}, "use", self._timeout)
        self.engine.use(new, self._layout)
        self._compare_arithmetic(self.engine.codecs())
        self._warn(stacklevel=3)

    def close(self) -> None:
        """Give the reductions back to FSDP; training then goes on uncompressed."""
        self._leave()
        self._callbacks.close()

    def _warn(self, stacklevel: int) -> None:
        if not self._headroom:
            warn_uncompressed(self.engine.plan, self.plan, stacklevel)
            names = {id(m.sharded_param): name for group in self._groups for name, m in group.members}
            warn_optimizer(self._optimizer, names, self.engine.decisions, stacklevel)

    def _agree(self, check: int) -> None:
        engine = self.engine
        facts = {
            "the thinwire version": __version__,
            "the plan": str(engine.plan),
            "the mesh": self._mesh.ranks,
            "the parameters": [(name, tuple(p.shape), str(p.dtype)) for name, p in self._layout],
            "the seed": engine.seed,
            "start": engine.start,
            "check": check,
            "headroom": self._headroom,
            "having a scaler": engine.skips,
            "the reduction": engine.reduction,
        }
        check_agreement(self._world, facts, "attach", self._timeout)


def _group_of(ranks: Sequence[int], timeout: timedelta | None) -> dist.ProcessGroup | None:
    """A group of all ranks that train a model; None: the default one."""
    if sorted(ranks) == list(range(dist.get_world_size())):
        return None
    return _new_group(ranks, timeout)


def _new_group(ranks: Sequence[int], timeout: timedelta | None) -> dist.ProcessGroup:
    group: dist.ProcessGroup = dist.new_group(
        sorted(ranks), timeout=timeout, use_local_synchronization=len(ranks) < dist.get_world_size()
    )
    return group
