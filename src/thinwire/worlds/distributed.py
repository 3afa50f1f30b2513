"""Processes over torch.distributed: the operations on a process group."""

import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.core.average import average as average_rounds
from thinwire.core.buffers import Buffers
from thinwire.core.codec import Codec
from thinwire.core.inputs import check_floats, check_out, check_weights
from thinwire.core.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Begin,
    Broadcast,
    Collective,
    Finish,
    Hops,
    Leg,
    Op,
    Rounds,
    SendRecv,
    announced_lengths,
    checked_lengths,
    received_bytes,
    rounds_in,
    sent_bytes,
)
from thinwire.core.profiling import span
from thinwire.core.route import StepInfo
from thinwire.core.slot import Slot, check_slot
from thinwire.core.spec import Spec
from thinwire.core.stage import Stage
from thinwire.worlds.exchanges import Exchanges, give_way, split
from thinwire.worlds.relay import Relay

T = TypeVar("T")

_HOW = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


def average(
    tensor: Tensor,
    codec: Codec | Stage | str,
    *,
    slot: Slot | None = None,
    group: dist.ProcessGroup | None = None,
    seed: int = 0,
    step: int = 0,
    reduction: str | None = None,
    weights: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The mean of one tensor over the ranks of a process group, compressed by a codec.

    All ranks call it with tensors of equal shape and type, and get the same bits.

    Args:
        tensor: This rank's tensor.
        codec: The codec, or its text; equal on all ranks.
        slot: The codec's memory for this tensor. Keep it between steps: it holds residuals and bases. None forgets.
        group: The process group; None takes the default one.
        seed: Seed of random rounding; equal on all ranks.
        step: The number of the step; equal on all ranks.
        reduction: `"summed"`, `"sharded"`, `"gathered"` or `"ring"`; None takes the cheapest.
        weights: The parameter's values, for codecs that compare gradients with them (`iwp`).
        out: A tensor for the mean, which may be `tensor` itself; None makes one.

    Returns:
        The mean, equal on all ranks.

    Examples:
        >>> slot = thinwire.Slot()
        >>> for step in range(3):
        ...     mean = thinwire.average(gradient, "topk(density=0.1)", slot=slot, step=step)
    """
    codec, slot = Codec.parse(codec), check_slot(slot)
    check_floats("the tensor", tensor)
    if weights is not None:
        check_weights(weights, tensor)
    if out is not None:
        check_out(out, tensor)
    _warn_declined(codec, tensor)
    world = _world(group)
    info = StepInfo(world.rank, world.ranks, seed, step, reduction, buffers=world.buffers)
    return world.drive(average_rounds(codec, tensor, slot, info, weights, out))


_DECLINED: set[str] = set()  # codecs of which a warning has been given


def _warn_declined(codec: Codec, tensor: Tensor) -> None:
    """Say once for each codec that it leaves a tensor as it is."""
    spec = Spec.of(tuple(tensor.shape))
    if (reason := codec.declined(spec)) is None or codec.compresses(spec) or str(codec) in _DECLINED:
        return
    warnings.warn(
        f"nothing is compressed of a tensor of shape {tuple(tensor.shape)} ({reason}); pass matrices that are large"
        " enough, or take a codec that does not need them, such as qsgd(bits=4).",
        RuntimeWarning,
        stacklevel=3,
    )
    _DECLINED.add(str(codec))


_KEPT = threading.local()


def _world(group: dist.ProcessGroup | None) -> "Distributed":
    """A world of this group whose work memory is this thread's, and stays."""
    world = Distributed(group)
    if not hasattr(_KEPT, "buffers"):
        _KEPT.buffers = Buffers()
    world.buffers = _KEPT.buffers
    return world


@dataclass
class Counters:
    """Bytes, rounds and seconds of communication."""

    sent: int = 0
    received: int = 0
    rounds: int = 0
    seconds: float = 0.0


class Distributed(Exchanges):
    """Performs operations on one process group and counts what they cost this rank."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(group)
        self._counters = Counters()

    @property
    def sent(self) -> int:
        """Bytes that this rank put on the wire."""
        return self._counters.sent

    def counters(self) -> Counters:
        """What has been spent so far."""
        return replace(self._counters)

    def drive(self, rounds: Rounds[T]) -> T:
        """Run rounds to their end; what they took of the world's buffers is theirs until the next ones begin."""
        self.buffers.reset()
        self.meet()
        reply: Any = None
        try:
            while True:
                try:
                    op = rounds.send(reply)
                except StopIteration as end:
                    result: T = end.value
                    return result
                reply = self.perform(op)
        except BaseException as reason:
            self.tell_failure(reason)
            raise

    def perform(self, op: Op) -> Any:
        """Do one operation and return its reply; a failing backend becomes an error that says what was being done."""
        began = perf_counter()
        what = type(op.ticket[0] if isinstance(op, Finish) else op.op if isinstance(op, Begin) else op).__name__
        try:
            with span("exchange", what):
                return self._perform(op)
        except RuntimeError as reason:
            raise self.failure(what, reason) from reason
        finally:
            self._counters.seconds += perf_counter() - began

    def _perform(self, op: Op) -> Any:
        if isinstance(op, Finish):
            return self._finish(*op.ticket)
        started = op.op if isinstance(op, Begin) else op
        self._counters.rounds += rounds_in(started)
        ticket = (started, self._begin(started))
        if isinstance(op, Begin):
            give_way()
            return ticket
        return self._finish(*ticket)

    def _finish(self, op: Collective, finish: Callable[[], Any]) -> Any:
        reply = finish()
        self._counters.sent += sent_bytes(op, reply, self.rank, self.ranks)
        self._counters.received += received_bytes(op, reply, self.rank, self.ranks)
        return reply

    def _begin(self, op: Collective) -> Callable[[], Any]:
        """Start an operation; what is returned waits for it and gives the reply."""
        match op:
            case AllReduce():
                return self._all_reduce(op)
            case AllGather():
                return self._all_gather(op)
            case AllToAll():
                return self._all_to_all(op.parts, op.exact, op.longest)
            case Broadcast():
                return self._broadcast(op)
            case SendRecv():
                return self._send_recv(op)
            case Hops():
                return lambda: self._make_journey(op)

    def _all_reduce(self, op: AllReduce) -> Callable[[], list[Tensor]]:
        flat, sizes = self._joined(op.items), [t.numel() for t in op.items]
        work = dist.all_reduce(flat, _HOW[op.how], group=self.group, async_op=True) if self.ranks > 1 else None
        return lambda: _waited(work, split(flat, sizes))

    def _all_gather(self, op: AllGather) -> Callable[[], list[list[Tensor]]]:
        sizes = [t.numel() for t in op.items]
        if self.ranks == 1:
            return lambda: [list(op.items)]
        if not op.exact:
            return self._gather_uneven(op)
        flat = self._joined(op.items)
        gathered = self.buffers.empty(self.ranks * flat.numel(), flat.dtype, flat.device)
        work = _all_gather_flat(gathered, flat, self.group)
        return lambda: _waited(work, [split(row, sizes) for row in gathered.view(self.ranks, -1)])

    def _gather_uneven(self, op: AllGather) -> Callable[[], list[list[Tensor]]]:
        """Round a ring if there are streams; else every rank sends its own to each peer."""
        streams = self._streams(op.items[0].device)
        if streams is None or any(t.dtype != torch.uint8 for t in op.items):
            return self._all_to_all([list(op.items)] * self.ranks, False, op.longest)

        def finish() -> list[list[Tensor]]:
            with streams.journey() as number:
                relay = Relay(self.rank, streams.streams, number, self.buffers, streams.patience)
                return relay.make([t.contiguous() for t in op.items], op.longest)

        return finish

    def _all_to_all(
        self, parts: Sequence[Sequence[Tensor]], exact: bool, longest: int
    ) -> Callable[[], list[list[Tensor]]]:
        if self.ranks == 1:
            return lambda: [list(parts[0])]
        peer = (self.rank + 1) % self.ranks
        sizes = [[t.numel() for t in items] for items in parts]
        sizes[self.rank] = []
        incoming = [sizes[peer]] * self.ranks if exact else self._exchange_lengths(sizes, longest)
        like = parts[peer][0]
        sending = [t for j, items in enumerate(parts) if j != self.rank for t in items]
        flat = self._joined(sending)
        takes = [0 if j == self.rank else sum(incoming[j]) for j in range(self.ranks)]
        received = self.buffers.empty(sum(takes), like.dtype, like.device)
        gives = [sum(s) for s in sizes]
        work = dist.all_to_all_single(received, flat, takes, gives, group=self.group, async_op=True)
        rows = torch.split(received, takes)
        own = list(parts[self.rank])
        replies = [own if j == self.rank else split(rows[j], incoming[j]) for j in range(self.ranks)]
        return lambda: _waited(work, replies)

    def _exchange_lengths(self, sizes: list[list[int]], longest: int) -> list[list[int]]:
        """Tell every peer how long its items are, and hear the same; all send the same number of items."""
        device = self._device()
        count = max(len(items) for items in sizes)
        counts = [0 if j == self.rank else count for j in range(self.ranks)]
        flat = checked_lengths([n for j, items in enumerate(sizes) if j != self.rank for n in items])
        outgoing = torch.tensor(flat, dtype=torch.int32, device=device)
        heard = torch.empty_like(outgoing)
        dist.all_to_all_single(heard, outgoing, counts, counts, group=self.group)
        rows = enumerate(torch.split(heard, counts))
        return [announced_lengths(row.tolist(), longest, source) for source, row in rows]

    def _broadcast(self, op: Broadcast) -> Callable[[], list[Tensor]]:
        # what is broadcast is meant to be kept, so that it must not lie in work memory
        flat = op.items[0].contiguous() if len(op.items) == 1 else torch.cat([t.reshape(-1) for t in op.items])
        sizes = [t.numel() for t in op.items]
        work = dist.broadcast(flat, self._global(op.root), group=self.group, async_op=True) if self.ranks > 1 else None
        return lambda: _waited(work, split(flat, sizes))

    def _send_recv(self, op: SendRecv) -> Callable[[], tuple[list[Tensor], Any]]:
        if op.to == self.rank:
            return lambda: (list(op.items), op.meanwhile() if op.meanwhile else None)
        leg = Leg(op.to, op.source)
        sizes = self._lengths(op.items, leg, [op.longest] * len(op.items)) if op.sizes is None else op.sizes
        flight = self._depart(op.items, leg, sizes)

        def finish() -> tuple[list[Tensor], Any]:
            aside = op.meanwhile() if op.meanwhile else None
            return self._arrive(flight), aside

        return finish


def _all_gather_flat(out: Tensor, flat: Tensor, group: dist.ProcessGroup | None) -> Any:
    """torch 2.13 renames all_gather_into_tensor; older ones have only that."""
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return gather(out, flat, group=group, async_op=True)


def _waited(work: Any, reply: T) -> T:
    if work is not None:
        work.wait()
    return reply
