"""Processes over torch.distributed: the operations on a process group."""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.core.average import Turn
from thinwire.core.average import average as average_rounds
from thinwire.core.buffers import Buffers
from thinwire.core.codec import Codec
from thinwire.core.ops import (
    LENGTH_BYTES,
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
    received_bytes,
    rounds_in,
)
from thinwire.core.slot import Slot
from thinwire.core.stage import Stage
from thinwire.errors import CodecError, WireError, WorldError

T = TypeVar("T")

_HOW = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
_LONGEST = 2**31 - 1

Expected: TypeAlias = tuple[Tensor, Any]  # memory, and the work that will fill it

# where ranks share cores, the backend's threads get theirs before work that is not urgent begins
_give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: None)


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
    """The mean of `tensor` over a process group (the default one if None), through a chain.

    Keep the slot between steps: it holds residuals and bases. `seed` and `step` must be equal on all ranks. The mean
    goes into `out` if that is given (it may be the tensor itself), else into memory of its own.
    """
    if out is not None and (out.shape != tensor.shape or out.dtype != tensor.dtype or out.device != tensor.device):
        raise CodecError(
            f"out must be like the tensor, {tensor.dtype} {tuple(tensor.shape)} on {tensor.device};"
            f" got {out.dtype} {tuple(out.shape)} on {out.device}."
        )
    world = _world(group)
    turn = Turn(world.rank, world.ranks, seed, step, reduction, buffers=world.buffers)
    return world.drive(average_rounds(Codec.parse(codec), tensor, slot or Slot(), turn, weights, out))


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


class Distributed:
    """Performs operations on one process group and counts what they cost this rank."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise WorldError(
                "torch.distributed is not initialised: call torch.distributed.init_process_group() first,"
                " or use thinwire.simulate() in one process."
            )
        self.group = group
        self.rank = dist.get_rank(group)
        self.ranks = dist.get_world_size(group)
        self.buffers = Buffers()  # for one drive at a time; those of an operation that failed may still be in use
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
        reply: Any = None
        while True:
            try:
                op = rounds.send(reply)
            except StopIteration as end:
                result: T = end.value
                return result
            reply = self.perform(op)

    def perform(self, op: Op) -> Any:
        """Do one operation and return its reply; a failing backend becomes an error that says what was being done."""
        began = perf_counter()
        try:
            if isinstance(op, Finish):
                return self._finish(*op.ticket)
            started = op.op if isinstance(op, Begin) else op
            self._counters.rounds += rounds_in(started)
            ticket = (started, self._begin(started))
            return ticket if isinstance(op, Begin) else self._finish(*ticket)
        except RuntimeError as reason:
            what = type(op.ticket[0] if isinstance(op, Finish) else op.op if isinstance(op, Begin) else op).__name__
            raise WorldError(
                f"rank {self.rank} of {self.ranks}: {what} failed; a peer may have died or left"
                f" ({str(reason).splitlines()[0]})"
            ) from reason
        finally:
            self._counters.seconds += perf_counter() - began

    def _finish(self, op: Collective, finish: Callable[[], Any]) -> Any:
        reply = finish()
        self._counters.sent += op.sent(self.rank, self.ranks)
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
                return self._all_to_all(op.parts, op.exact)
            case Broadcast():
                return self._broadcast(op)
            case SendRecv():
                return self._send_recv(op)
            case Hops():
                return lambda: self._make_journey(op)

    def _all_reduce(self, op: AllReduce) -> Callable[[], list[Tensor]]:
        flat, sizes = self._joined(op.items), [t.numel() for t in op.items]
        work = dist.all_reduce(flat, _HOW[op.how], group=self.group, async_op=True) if self.ranks > 1 else None
        return lambda: _waited(work, _split(flat, sizes))

    def _all_gather(self, op: AllGather) -> Callable[[], list[list[Tensor]]]:
        sizes = [t.numel() for t in op.items]
        if self.ranks == 1:
            return lambda: [list(op.items)]
        if not op.exact:  # uneven messages: every rank sends its own to each peer
            return self._all_to_all([list(op.items)] * self.ranks, False)
        flat = self._joined(op.items)
        gathered = self.buffers.empty(self.ranks * flat.numel(), flat.dtype, flat.device)
        work = _all_gather_flat(gathered, flat, self.group)
        return lambda: _waited(work, [_split(row, sizes) for row in gathered.view(self.ranks, -1)])

    def _all_to_all(self, parts: Sequence[Sequence[Tensor]], exact: bool) -> Callable[[], list[list[Tensor]]]:
        if self.ranks == 1:
            return lambda: [list(parts[0])]
        peer = (self.rank + 1) % self.ranks
        sizes = [[t.numel() for t in items] for items in parts]
        sizes[self.rank] = []
        incoming = [sizes[peer]] * self.ranks if exact else self._exchange_lengths(sizes)
        like = parts[peer][0]
        sending = [t for j, items in enumerate(parts) if j != self.rank for t in items]
        flat = self._joined(sending)
        takes = [0 if j == self.rank else sum(incoming[j]) for j in range(self.ranks)]
        received = self.buffers.empty(sum(takes), like.dtype, like.device)
        gives = [sum(s) for s in sizes]
        work = dist.all_to_all_single(received, flat, takes, gives, group=self.group, async_op=True)
        rows = torch.split(received, takes)
        own = list(parts[self.rank])
        replies = [own if j == self.rank else _split(rows[j], incoming[j]) for j in range(self.ranks)]
        return lambda: _waited(work, replies)

    def _exchange_lengths(self, sizes: list[list[int]]) -> list[list[int]]:
        """Tell every peer how long its items are, and hear the same; all send the same number of items."""
        device = self._device()
        count = max(len(items) for items in sizes)
        counts = [0 if j == self.rank else count for j in range(self.ranks)]
        flat = [n for j, items in enumerate(sizes) if j != self.rank for n in items]
        if any(n > _LONGEST for n in flat):
            raise WireError(
                f"a message of {max(flat)} bytes is longer than the {_LONGEST} that {LENGTH_BYTES} bytes can say."
            )
        outgoing = torch.tensor(flat, dtype=torch.int32, device=device)
        heard = torch.empty_like(outgoing)
        dist.all_to_all_single(heard, outgoing, counts, counts, group=self.group)
        lengths = [row.tolist() for row in torch.split(heard, counts)]
        if any(n < 0 for row in lengths for n in row):
            raise WireError(f"rank {self.rank} of {self.ranks}: a peer announced a message of negative length.")
        return lengths

    def _broadcast(self, op: Broadcast) -> Callable[[], list[Tensor]]:
        # what is broadcast is meant to be kept, so that it must not lie in work memory
        flat = op.items[0].contiguous() if len(op.items) == 1 else torch.cat([t.reshape(-1) for t in op.items])
        sizes = [t.numel() for t in op.items]
        work = dist.broadcast(flat, self._global(op.root), group=self.group, async_op=True) if self.ranks > 1 else None
        return lambda: _waited(work, _split(flat, sizes))

    def _send_recv(self, op: SendRecv) -> Callable[[], tuple[list[Tensor], Any]]:
        if op.to == self.rank:
            return lambda: (list(op.items), op.meanwhile() if op.meanwhile else None)
        leg = Leg(op.to, op.source)
        sizes = self._lengths(op.items, leg) if op.sizes is None else op.sizes
        flight = self._depart(op.items, leg, sizes, None)

        def finish() -> tuple[list[Tensor], Any]:
            aside = op.meanwhile() if op.meanwhile else None
            return self._arrive(flight), aside

        return finish

    # Journeys.

    def _make_journey(self, op: Hops) -> None:
        """Send, receive and work, leg by leg."""
        last = len(op.legs) - 1
        landed: tuple[int, list[Tensor]] | None = None  # what has come and is not taken yet
        places = self._places(op)
        expected, items = self._expect(op, 0, places), op.given(0)
        for at, leg in enumerate(op.legs):
            sizes = self._lengths(items, leg) if op.sizes is None else op.sizes[at]
            flight = self._depart(items, leg, sizes, expected)
            expected = self._expect(op, at + 1, places) if at < last else None
            _give_way()
            if landed is not None:
                op.taken(*landed)
            early = at < last and op.legs[at + 1].needs < at
            if early:
                items = op.given(at + 1)
            landed = (at, self._arrive(flight))
            if not early:
                op.taken(*landed)
                landed = None
                items = op.given(at + 1) if at < last else []

    def _places(self, op: Hops) -> list[Tensor]:
        """Memory for what comes: one message is under way, one is expected, and one waits to be taken."""
        longest = max((sum(sizes) for sizes in op.sizes), default=0) if op.sizes is not None else 0
        return [self.buffers.empty(longest, torch.uint8, op.device) for _ in range(3)]

    def _expect(self, op: Hops, at: int, places: Sequence[Tensor]) -> Expected | None:
        """A receive that is posted before its turn: Gloo sends at once where the receiver is known to wait, else it
        asks. Accelerators' backends want to receive and send in one batch."""
        if op.sizes is None or op.device.type != "cpu":
            return None
        incoming = places[at % 3][: sum(op.sizes[at])]
        return incoming, dist.irecv(incoming, self._global(op.legs[at].source), self.group)

    def _depart(self, items: Sequence[Tensor], leg: Leg, sizes: Sequence[int], expected: Expected | None) -> "Flight":
        flat = self._joined(items)
        to, source = self._global(leg.to), self._global(leg.source)
        if expected is not None:
            incoming, receiving = expected
            return Flight(incoming, sizes, [receiving, dist.isend(flat, to, self.group)], flat)
        incoming = self.buffers.empty(sum(sizes), flat.dtype, flat.device)
        # to receive comes first, for Gloo's sake
        both = [dist.P2POp(dist.irecv, incoming, source, self.group), dist.P2POp(dist.isend, flat, to, self.group)]
        return Flight(incoming, sizes, dist.batch_isend_irecv(both), flat)

    def _arrive(self, flight: "Flight") -> list[Tensor]:
        for work in flight.works:
            work.wait()
        return _split(flight.incoming, flight.sizes)

    def _lengths(self, items: Sequence[Tensor], leg: Leg) -> list[int]:
        """How long the items are that will come, told before them."""
        lengths = torch.tensor([t.numel() for t in items], dtype=torch.int32, device=self._device())
        (told,) = self._arrive(self._depart([lengths], leg, [lengths.numel()], None))
        return told.tolist()

    def _global(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def _joined(self, items: Sequence[Tensor]) -> Tensor:
        """One flat tensor: the items' own memory where they lie one behind the other."""
        first = items[0]
        if len(items) == 1:
            return first.contiguous()
        if _adjacent(items):
            return first.as_strided((sum(t.numel() for t in items),), (1,))
        flat = self.buffers.empty(sum(t.numel() for t in items), first.dtype, first.device)
        return torch.cat([t.reshape(-1) for t in items], out=flat)

    def _device(self) -> torch.device:
        """Where small control tensors must live for this backend."""
        name = str(dist.get_backend(self.group))
        return torch.device("cuda", torch.cuda.current_device()) if "nccl" in name else torch.device("cpu")


class Flight(NamedTuple):
    """An exchange under way, with what must stay where it is until it has ended."""

    incoming: Tensor
    sizes: Sequence[int]
    works: list[Any]
    outgoing: Tensor


def _all_gather_flat(out: Tensor, flat: Tensor, group: dist.ProcessGroup | None) -> Any:
    """torch 2.13 renames all_gather_into_tensor; older ones have only that."""
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return gather(out, flat, group=group, async_op=True)


def _waited(work: Any, reply: T) -> T:
    if work is not None:
        work.wait()
    return reply


def _adjacent(items: Sequence[Tensor]) -> bool:
    storage, end = items[0].untyped_storage().data_ptr(), items[0].data_ptr()
    for item in items:
        if item.data_ptr() != end or not item.is_contiguous() or item.untyped_storage().data_ptr() != storage:
            return False
        end += item.numel() * item.element_size()
    return True


def _split(flat: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    return [flat] if len(sizes) == 1 else list(torch.split(flat, list(sizes)))
