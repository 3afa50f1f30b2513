"""The operations by torch.distributed: its collectives, and its send and receive as a transport."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.core.buffers import Buffers
from thinwire.core.ops import (
    AllGather,
    AllReduce,
    Broadcast,
    Hop,
    PipelinedExchange,
    SendRecv,
    announced_lengths,
    checked_lengths,
)
from thinwire.worlds.group import Group

T = TypeVar("T")

_HOW = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}

# where ranks share cores, the backend's threads run before this thread begins work that is not urgent
yield_cpu: Callable[[], None] = getattr(os, "sched_yield", lambda: None)


@dataclass
class _InFlight:
    """A send and a receive that have begun, with the memory that they use."""

    outgoing: Tensor
    items: list[Tensor]
    works: list[Any]


class Backend:
    """Begins operations on one process group; the functions that it returns wait for them and return the reply."""

    def __init__(self, group: Group, buffers: Buffers) -> None:
        self.group, self.buffers = group, buffers
        self.rank, self.ranks, self.handle = group.rank, group.ranks, group.handle

    def all_reduce(self, op: AllReduce) -> Callable[[], list[Tensor]]:
        flat, sizes = self._joined(op.items), [t.numel() for t in op.items]
        work = dist.all_reduce(flat, _HOW[op.how], group=self.handle, async_op=True) if self.ranks > 1 else None
        return lambda: _waited(work, _split(flat, sizes))

    def all_gather(self, op: AllGather) -> Callable[[], list[list[Tensor]]]:
        """Items whose sizes are the same on all ranks."""
        sizes = [t.numel() for t in op.items]
        flat = self._joined(op.items)
        gathered = self.buffers.empty(self.ranks * flat.numel(), flat.dtype, flat.device)
        work = _all_gather_flat(gathered, flat, self.handle)
        return lambda: _waited(work, [_split(row, sizes) for row in gathered.view(self.ranks, -1)])

    def gather(self, items: Sequence[Tensor], longest: int) -> Callable[[], list[list[Tensor]]]:
        return self.all_to_all([list(items)] * self.ranks, False, longest)

    def all_to_all(
        self, parts: Sequence[Sequence[Tensor]], exact: bool, longest: int
    ) -> Callable[[], list[list[Tensor]]]:
        if self.ranks == 1:
            return lambda: [list(parts[0])]
        peer = (self.rank + 1) % self.ranks
        sizes = [[t.numel() for t in items] for items in parts]
        sizes[self.rank] = []
        incoming = [sizes[peer]] * self.ranks if exact else self._exchange_lengths(sizes, longest)
        like = parts[peer][0]
        flat = self._joined([t for j, items in enumerate(parts) if j != self.rank for t in items])
        output_sizes = [0 if j == self.rank else sum(incoming[j]) for j in range(self.ranks)]
        received = self.buffers.empty(sum(output_sizes), like.dtype, like.device)
        input_sizes = [sum(s) for s in sizes]
        work = dist.all_to_all_single(received, flat, output_sizes, input_sizes, group=self.handle, async_op=True)
        rows = torch.split(received, output_sizes)
        own = list(parts[self.rank])
        replies = [own if j == self.rank else _split(rows[j], incoming[j]) for j in range(self.ranks)]
        return lambda: _waited(work, replies)

    def _exchange_lengths(self, sizes: list[list[int]], longest: int) -> list[list[int]]:
        """Send every peer the lengths of its items, and receive its lengths; all ranks send as many items."""
        count = max(len(items) for items in sizes)
        counts = [0 if j == self.rank else count for j in range(self.ranks)]
        flat = checked_lengths([n for j, items in enumerate(sizes) if j != self.rank for n in items])
        outgoing = torch.tensor(flat, dtype=torch.int32, device=self.group.control_device)
        received = torch.empty_like(outgoing)
        dist.all_to_all_single(received, outgoing, counts, counts, group=self.handle)
        rows = enumerate(torch.split(received, counts))
        return [announced_lengths(row.tolist(), longest, source) for source, row in rows]

    def broadcast(self, op: Broadcast) -> Callable[[], list[Tensor]]:
        # callers keep the result of a broadcast, so that it must not lie in work memory
        flat = op.items[0].contiguous() if len(op.items) == 1 else torch.cat([t.reshape(-1) for t in op.items])
        sizes, root = [t.numel() for t in op.items], self.group.global_rank(op.root)
        work = dist.broadcast(flat, root, group=self.handle, async_op=True) if self.ranks > 1 else None
        return lambda: _waited(work, _split(flat, sizes))

    def send_recv(self, op: SendRecv) -> Callable[[], tuple[list[Tensor], Any]]:
        if op.to == self.rank:
            return lambda: (list(op.items), op.meanwhile() if op.meanwhile else None)
        hop = Hop(op.to, op.source)
        sizes = self._hop_lengths(op.items, hop, [op.longest] * len(op.items)) if op.sizes is None else op.sizes
        in_flight = self._begin_hop(op.items, hop, sizes)

        def finish() -> tuple[list[Tensor], Any]:
            result = op.meanwhile() if op.meanwhile else None
            return self._end_hop(in_flight), result

        return finish

    def exchange(self, op: PipelinedExchange) -> None:
        """One hop after the other: the next messages are made while those of a hop are in flight, if they can be."""
        longest = [item.longest for item in op.items]
        messages: list[Tensor] | None = None
        received: list[Tensor] = []  # of the hop before; the items do not have them yet
        for at, hop in enumerate(op.hops):
            if messages is None:  # they are made of what was received
                self._deliver(op, at - 1, received)
                messages = self._messages(op, at)
            in_flight = self._begin_hop(messages, hop, op.sizes or self._hop_lengths(messages, hop, longest))
            yield_cpu()
            self._deliver(op, at - 1, received)
            ahead = at + 1 < len(op.hops) and op.hops[at + 1].needs < at
            messages = self._messages(op, at + 1) if ahead else None
            received = self._end_hop(in_flight)
            for index in range(len(op.items)):
                op.on_sent(at, index)
        self._deliver(op, len(op.hops) - 1, received)

    def close(self) -> None:
        """Do nothing: the process group owns its connections."""

    def _messages(self, op: PipelinedExchange, hop: int) -> list[Tensor]:
        return [op.next_message(hop, index) for index in range(len(op.items))]

    def _deliver(self, op: PipelinedExchange, hop: int, received: list[Tensor]) -> None:
        for index, message in enumerate(received):
            op.on_message(hop, index, message)
        received.clear()

    def _begin_hop(self, items: Sequence[Tensor], hop: Hop, sizes: Sequence[int]) -> _InFlight:
        """Begin to send and to receive."""
        flat = self._joined(items)
        received = self.buffers.empty(sum(sizes), flat.dtype, flat.device)
        receive = dist.P2POp(dist.irecv, received, self.group.global_rank(hop.source), self.handle)
        send = dist.P2POp(dist.isend, flat, self.group.global_rank(hop.to), self.handle)
        return _InFlight(flat, _split(received, sizes), dist.batch_isend_irecv([receive, send]))

    def _end_hop(self, in_flight: _InFlight) -> list[Tensor]:
        """Wait until all has been received and sent."""
        for work in in_flight.works:
            work.wait()
        return in_flight.items

    def _hop_lengths(self, items: Sequence[Tensor], hop: Hop, longest: Sequence[int]) -> list[int]:
        """The lengths of the items that a hop will receive, which its peers send first; none is above `longest`."""
        own = checked_lengths([t.numel() for t in items])
        lengths = torch.tensor(own, dtype=torch.int32, device=self.group.control_device)
        (received,) = self._end_hop(self._begin_hop([lengths], hop, [lengths.numel()]))
        for length, most in zip(received.tolist(), longest, strict=True):
            announced_lengths([length], most, hop.source)
        return list(received.tolist())

    def _joined(self, items: Sequence[Tensor]) -> Tensor:
        """One flat tensor: the items' own memory where they lie one behind the other."""
        first = items[0]
        if len(items) == 1:
            return first.contiguous()
        if _adjacent(items):
            return first.as_strided((sum(t.numel() for t in items),), (1,))
        flat = self.buffers.empty(sum(t.numel() for t in items), first.dtype, first.device)
        return torch.cat([t.reshape(-1) for t in items], out=flat)


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
