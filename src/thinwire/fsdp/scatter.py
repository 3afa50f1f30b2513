"""FSDP without replicas: the reduce-scatter of gradients, compressed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.core.coalesced import coalesced
from thinwire.core.codec import Codec
from thinwire.core.plan import Decision, Plan
from thinwire.core.profiling import span
from thinwire.core.scatter import misfit, reduce_scatter
from thinwire.core.spec import Spec
from thinwire.ddp.engine import Engine
from thinwire.ddp.meter import Entry, Meter, Tally, metered
from thinwire.errors import CodecError
from thinwire.fsdp.groups import ParameterGroup
from thinwire.fsdp.handle import FSDPHandle
from thinwire.fsdp.replicas import is_sum
from thinwire.kernels.shares import all_finite
from thinwire.worlds.distributed import Distributed


class ReduceScatter:
    """What FSDP calls instead of its own reduce-scatter."""

    def __init__(self, own: Any, reduce: Callable[[Tensor, Tensor, Any], None]) -> None:
        """`own`: that of FSDP, which allocates; `reduce(output, input, op)`."""
        self._own, self._reduce = own, reduce

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        memory: Tensor = self._own.allocate(size, dtype=dtype, device=device)
        return memory

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, **unused: Any) -> None:
        self._reduce(output_tensor, input_tensor, op)


@dataclass
class Rows:
    """What this rank gives of one parameter to each rank, and where the mean of its own shard goes."""

    name: str
    rows: Sequence[Tensor]
    out: Tensor


class ScatterEngine(Engine):
    """Reduce-scatters gradients as a plan says.

    Every parameter has a slot for each shard: `name@0` has what this rank has not delivered yet to the first rank.
    """

    @staticmethod
    def decided(plan: Plan, parameters: Iterable[tuple[str, Tensor]]) -> dict[str, Decision]:
        return {name: plan.decide(name.rpartition("@")[0], tuple(p.shape), p.dtype) for name, p in parameters}

    def scatter(self, pieces: Sequence[Rows], world: Distributed) -> None:
        """Fill each piece's `out` with the mean over the ranks."""
        codecs = [self.codec(f"{piece.name}@0") for piece in pieces]
        slots = [[self._slot(f"{piece.name}@{shard}") for shard in range(world.ranks)] for piece in pieces]
        tallies = [Tally(1, sum(row.numel() for row in piece.rows)) for piece in pieces]
        work = []
        for piece, codec, own in zip(pieces, codecs, slots, strict=True):
            infos = [self._info(f"{piece.name}@{shard}", world, _reduction(codec)) for shard in range(world.ranks)]
            for slot in own:
                slot.dial = self.dial
            work.append(reduce_scatter(codec, piece.rows, own, infos))
        rounds = [metered(each, tally, world.rank, world.ranks) for each, tally in zip(work, tallies, strict=True)]
        before = world.counters()
        with span("average", ", ".join(piece.name for piece in pieces[:4])):
            means = world.drive(coalesced(rounds))
        for piece, mean in zip(pieces, means, strict=True):
            piece.out.copy_(mean)
        if self.skips and not all(all_finite(mean) for mean in means):
            self.overflow = True
        entries = []
        for codec, own, tally in zip(codecs, slots, tallies, strict=True):
            notes = [slot.notes for slot in own]
            tally.elements_sent = int(sum(note.get("elements_sent", tally.elements / len(own)) for note in notes))
            tally.lost = sum(note.get("lost", 0.0) for note in notes)
            tally.given = sum(note.get("given", 0.0) for note in notes)
            entries.append(Entry(str(codec), tally))
        self.meter.add(before, world.counters(), entries)

    def check_fit(self, decisions: Mapping[str, Decision]) -> None:
        """Refuse chains that need what a reduce-scatter does not give."""
        for decision in decisions.values():
            codec = decision.codec
            reason = misfit(codec, Spec.of(decision.shape))
            if reason is None and self.skips and codec.feedback != "off":
                reason = "a step that the scaler skips would be lost for its residual"
            if reason is not None:
                raise CodecError(
                    f"{codec} does not work in a reduce-scatter: {reason}; without replicas, FSDP takes chains such as"
                    " qsgd(bits=4), topk(density=0.01), fftsgd(transform=always) or bf16."
                )


def _reduction(codec: Codec) -> str | None:
    """Chains do not prepare for an owner that encodes a sum again."""
    return "gathered" if codec.coders else None


class ScatterHandle(FSDPHandle):
    """The handle of a model that FSDP2 trains without replicas: the reduce-scatter of its gradients is compressed.

    Every rank sends each other rank its part of a gradient as a message, and the owner of a shard adds them in fp32.
    The all-gather of parameters stays as it is.
    """

    engine: ScatterEngine

    def _engine(self, plan: Plan, seed: int, start: int) -> Engine:
        shards = range(self._mesh.shard[1])
        self._layout = [(f"{name}@{shard}", p) for name, p in self._layout for shard in shards]
        engine = ScatterEngine(plan, ScatterEngine.decided(plan, self._layout), seed, start)
        engine.meter = Meter(ways=1)
        return engine

    def _check_plan(self, decisions: Mapping[str, Decision]) -> None:
        self.engine.check_fit(decisions)

    def _reducing_group(self, timeout: timedelta | None) -> dist.ProcessGroup:
        assert self._mesh.shards is not None
        return self._own_group(self._mesh.shards, timeout)

    @property
    def plan(self) -> list[Decision]:
        """What was decided for every parameter, and why; the shapes are those of shards."""
        return list({decision.name: decision for decision in super().plan}.values())

    def _enter(self) -> None:
        for group in self._groups:
            group.replace_reduce_scatter(ReduceScatter(group.reduce_scatter, self._on_reduce_scatter))
            group.follow(self._on_group)

    def _is_reduced(self, group: ParameterGroup) -> bool:
        return bool(group.inner.reduce_grads) and self._mesh.shard[1] > 1

    def _on_reduce_scatter(self, output: Tensor, given: Tensor, op: Any) -> None:
        if self.headroom:
            output.zero_()
        self._called(lambda group, reduced: self._scatter(output, given, is_sum(op), group, reduced))

    def _scatter(
        self, output: Tensor, given: Tensor, summed: bool, group: ParameterGroup, reduced: Sequence[tuple[str, Any]]
    ) -> None:
        ranks = self._reducing.ranks
        pieces, names = [], [name for name, _ in reduced]
        parts = group.pieces(output, reduced)
        columns = [torch.split(row, [part.numel() for part in parts]) for row in given.view(ranks, -1)]
        for at, (name, part) in enumerate(zip(names, parts, strict=True)):
            rows = [columns[shard][at].view(part.shape) for shard in range(ranks)]
            pieces.append(Rows(name, rows, part.view(-1)))
        with self._steps.reducing(", ".join(names[:4])):
            self.engine.scatter(pieces, self._reducing)
        if summed:
            output.mul_(ranks)
