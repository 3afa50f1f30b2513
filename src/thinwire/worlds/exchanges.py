"""Messages between two ranks of a process group: exchanges, and journeys of several of them."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.core.buffers import Buffers
from thinwire.core.ops import LENGTH_BYTES, Hops, Leg
from thinwire.errors import WireError, WorldError

_LONGEST = 2**31 - 1
_TAIL = 1 << 16  # bytes of a message that are still to come when the next one is asked for

# where ranks share cores, the backend's threads get theirs before work that is not urgent begins
give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: None)


@dataclass
class Flight:
    """An exchange under way, with what must stay where it is until it has ended.

    Long messages come in two pieces, a head and a tail: while the tail travels, the next message is asked for, so that
    its sender need not wait until it is known that all has come.
    """

    leg: Leg
    incoming: Tensor
    sizes: Sequence[int]
    receives: list[Any] = field(default_factory=list)  # not waited for yet: a backend's work is waited for once
    sends: list[Any] = field(default_factory=list)
    outgoing: Tensor | None = None


class Exchanges:
    """Sends and receives on one process group, in work memory that is kept."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise WorldError(
                "torch.distributed is not initialised: call torch.distributed.init_process_group() first,"
                " or use thinwire.simulate() in one process."
            )
        self.group = group
        self.rank = dist.get_rank(group)
        self.ranks = dist.get_world_size(group)
        self._gloo = _devices_of("gloo", group)
        self.buffers = Buffers()  # for one drive at a time; those of an operation that failed may still be in use

    def _make_journey(self, op: Hops) -> None:
        """Send, receive and work, leg by leg."""
        last = len(op.legs) - 1
        places = self._places(op)
        awaited = self._awaited(op, 0, places)
        items = op.given(0)
        before: Flight | None = None  # what came with the leg before is not taken yet
        for at, leg in enumerate(op.legs):
            flight = awaited or self._asked_for(items, leg, self._lengths(items, leg))
            self._send(flight, items)
            give_way()
            if before is not None:
                op.taken(at - 1, self._arrive(before))
            early = at < last and op.legs[at + 1].needs < at
            if early:
                items = op.given(at + 1)
            self._await_head(flight)
            awaited = self._awaited(op, at + 1, places) if at < last else None
            before = flight if early else None
            if not early:
                op.taken(at, self._arrive(flight))
                items = op.given(at + 1) if at < last else []

    def _places(self, op: Hops) -> list[Tensor]:
        """Memory for what comes, if its size is known: one message is under way, and one waits to be taken."""
        if op.sizes is None:
            return []
        longest = max((sum(sizes) for sizes in op.sizes), default=0)
        return [self.buffers.empty(longest, torch.uint8, op.device) for _ in range(2)]

    def _awaited(self, op: Hops, at: int, places: list[Tensor]) -> Flight | None:
        """Ask for what comes with a leg, if it is known how long that is."""
        return None if op.sizes is None else self._expect(op.legs[at], op.sizes[at], places[at % 2])

    def _depart(self, items: Sequence[Tensor], leg: Leg, sizes: Sequence[int]) -> Flight:
        flight = self._asked_for(items, leg, sizes)
        self._send(flight, items)
        return flight

    def _asked_for(self, like: Sequence[Tensor], leg: Leg, sizes: Sequence[int]) -> Flight:
        return self._expect(leg, sizes, self.buffers.empty(sum(sizes), like[0].dtype, like[0].device))

    def _expect(self, leg: Leg, sizes: Sequence[int], place: Tensor) -> Flight:
        """Begin to receive. It comes before to send: Gloo sends at once where the receiver is known to wait."""
        flight = Flight(leg, place[: sum(sizes)], sizes)
        if self._apart(flight):
            source = self._global(leg.source)
            flight.receives = [dist.irecv(piece, source, self.group) for piece in _pieces(flight.incoming)]
        return flight

    def _send(self, flight: Flight, items: Sequence[Tensor]) -> None:
        flight.outgoing = flat = self._joined(items)
        to = self._global(flight.leg.to)
        if self._apart(flight):
            flight.sends = [dist.isend(piece, to, self.group) for piece in _pieces(flat)]
            return
        receive = dist.P2POp(dist.irecv, flight.incoming, self._global(flight.leg.source), self.group)
        flight.sends = dist.batch_isend_irecv([receive, dist.P2POp(dist.isend, flat, to, self.group)])

    def _apart(self, flight: Flight) -> bool:
        """Gloo's sends and receives go their own ways; others' must be begun in pairs."""
        return flight.incoming.device.type in self._gloo

    def _await_head(self, flight: Flight) -> None:
        """Until the next message may be asked for; where exchanges are begun in pairs, until this one has ended."""
        if self._apart(flight):
            flight.receives.pop(0).wait()
            return
        while flight.sends:
            flight.sends.pop(0).wait()

    def _arrive(self, flight: Flight) -> list[Tensor]:
        for work in flight.receives + flight.sends:
            work.wait()
        return split(flight.incoming, flight.sizes)

    def _lengths(self, items: Sequence[Tensor], leg: Leg) -> list[int]:
        """How long the items are that will come, told before them."""
        mine = checked_lengths([t.numel() for t in items])
        lengths = torch.tensor(mine, dtype=torch.int32, device=self._device())
        (told,) = self._arrive(self._depart([lengths], leg, [lengths.numel()]))
        return self._heard_lengths(told)

    def _global(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def _heard_lengths(self, heard: Tensor) -> list[int]:
        lengths: list[int] = heard.tolist()
        if any(n < 0 for n in lengths):
            raise WireError(f"rank {self.rank} of {self.ranks}: a peer announced a message of negative length.")
        return lengths

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


def _devices_of(backend: str, group: dist.ProcessGroup | None) -> set[str]:
    """Types of devices whose tensors go through this backend; a group may have one for each type."""
    served = (part.partition(":") for part in str(dist.get_backend_config(group)).split(","))
    return {device for device, _, name in served if name == backend}


def checked_lengths(lengths: list[int]) -> list[int]:
    if any(n > _LONGEST for n in lengths):
        raise WireError(
            f"a message of {max(lengths)} bytes is longer than the {_LONGEST} that {LENGTH_BYTES} bytes can say."
        )
    return lengths


def _pieces(message: Tensor) -> list[Tensor]:
    """A message as it is sent: in one piece, or a head and a tail."""
    tail = _TAIL // message.element_size()
    return [message] if message.numel() < 2 * tail else [message[:-tail], message[-tail:]]


def _adjacent(items: Sequence[Tensor]) -> bool:
    storage, end = items[0].untyped_storage().data_ptr(), items[0].data_ptr()
    for item in items:
        if item.data_ptr() != end or not item.is_contiguous() or item.untyped_storage().data_ptr() != storage:
            return False
        end += item.numel() * item.element_size()
    return True


def split(flat: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    return [flat] if len(sizes) == 1 else list(torch.split(flat, list(sizes)))
