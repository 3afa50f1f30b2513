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
_PARCEL = 1 << 18  # bytes that are worth an exchange of their own
_PARCELS = 3  # of a message

# where ranks share cores, the backend's threads get theirs before work that is not urgent begins
give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: None)


@dataclass
class Place:
    """Memory for the items of a message, which come in parcels, one after the other.

    The last parcel, if it is long, comes as a head and a tail: while the tail travels, the next message is asked for,
    so that its sender need not wait until it is known that all has come.
    """

    flat: Tensor
    parcels: list[range]  # of items
    items: list[Tensor]
    pieces: list[list[Tensor]]  # of each parcel, as they come

    @classmethod
    def of(cls, flat: Tensor, sizes: Sequence[int], parcels: list[range]) -> "Place":
        lengths = [sum(sizes[parcel.start : parcel.stop]) for parcel in parcels]
        *others, last = split(flat, lengths)
        return cls(flat, parcels, split(flat, sizes), [[parcel] for parcel in others] + [head_and_tail(last)])


@dataclass
class Flight:
    """An exchange under way, with what must stay where it is until it has ended."""

    leg: Leg
    place: Place
    receives: list[list[Any]] = field(default_factory=list)  # of each parcel; a backend's work is waited for once
    sends: list[Any] = field(default_factory=list)
    outgoing: list[Tensor] = field(default_factory=list)
    arrived: int = 0  # parcels

    @property
    def ended(self) -> bool:
        return self.arrived == len(self.place.parcels)


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
        flight = self._expect(op.legs[0], places[0]) if places else None
        before: Flight | None = None  # not all that came with the leg before is taken yet
        made: list[Tensor] = []  # of the next leg's items, the first ones
        for at, leg in enumerate(op.legs):
            flight = self._leave(op, at, made, flight, before if leg.needs == at - 1 else None)
            give_way()
            if before is not None:
                self._take_all(op, at - 1, before)
            made = self._prepare(op, at, flight)
            self._await_head(flight)
            before = flight
            flight = self._expect(op.legs[at + 1], places[(at + 1) % 2]) if places and at < last else None
        if before is not None:
            self._take_all(op, last, before)

    def _leave(self, op: Hops, at: int, made: list[Tensor], flight: Flight | None, needed: Flight | None) -> Flight:
        """Send a leg's items, parcel by parcel: those made already, and others when what they need has come."""
        if flight is None:  # how long its items are must be told first
            if needed is not None:
                self._take_all(op, at - 1, needed)
            made = made or [op.given(at, i) for i in range(len(op.items))]
            flight = self._asked_for(made, op.legs[at], self._lengths(made, op.legs[at]))
        for number, parcel in enumerate(flight.place.parcels):
            if needed is not None and needed.arrived <= number:
                self._take(op, at - 1, needed)
            made += [op.given(at, i) for i in range(len(made), parcel.stop)]
            self._send(flight, made[parcel.start : parcel.stop])
        return flight

    def _prepare(self, op: Hops, at: int, flight: Flight) -> list[Tensor]:
        """The next leg's items that can be made while a leg is under way."""
        last = at == len(op.legs) - 1
        if not last and op.legs[at + 1].needs < at:
            return [op.given(at + 1, i) for i in range(len(op.items))]
        made: list[Tensor] = []
        for parcel in flight.place.parcels[:-1]:
            self._take(op, at, flight)
            made += [] if last else [op.given(at + 1, i) for i in parcel]
        return made

    def _take_all(self, op: Hops, at: int, flight: Flight) -> None:
        while not flight.ended:
            self._take(op, at, flight)

    def _take(self, op: Hops, at: int, flight: Flight) -> None:
        """The next parcel."""
        parcel = flight.place.parcels[flight.arrived]
        self._arrive(flight)
        for i in parcel:
            op.taken(at, i, flight.place.items[i])

    def _places(self, op: Hops) -> list[Place]:
        """For what comes, if its size is known: one message is under way, and one waits to be taken."""
        sizes = op.sizes
        if sizes is None:
            return []
        parcels = parcels_of(sizes) if op.device.type in self._gloo else [range(len(sizes))]
        places = [self.buffers.empty(sum(sizes), torch.uint8, op.device) for _ in range(2)]
        return [Place.of(place, sizes, parcels) for place in places]

    def _depart(self, items: Sequence[Tensor], leg: Leg, sizes: Sequence[int]) -> Flight:
        flight = self._asked_for(items, leg, sizes)
        self._send(flight, items)
        return flight

    def _asked_for(self, like: Sequence[Tensor], leg: Leg, sizes: Sequence[int]) -> Flight:
        place = self.buffers.empty(sum(sizes), like[0].dtype, like[0].device)
        return self._expect(leg, Place.of(place, sizes, [range(len(sizes))]))

    def _expect(self, leg: Leg, place: Place) -> Flight:
        """Begin to receive. It comes before to send: Gloo sends at once where the receiver is known to wait."""
        flight = Flight(leg, place)
        if self._apart(flight):
            # the group's own methods, without the checks of `irecv` and `isend`: they take as long as the rest
            receive, source = self._process_group.recv, leg.source
            flight.receives = [[receive([piece], source, 0) for piece in pieces] for pieces in place.pieces]
        return flight

    def _send(self, flight: Flight, items: Sequence[Tensor]) -> None:
        """The next parcel."""
        flat, to = self._joined(items), flight.leg.to
        flight.outgoing.append(flat)
        if self._apart(flight):
            last = len(flight.outgoing) == len(flight.place.parcels)
            send = self._process_group.send
            flight.sends += [send([piece], to, 0) for piece in (head_and_tail(flat) if last else [flat])]
            return
        receive = dist.P2POp(dist.irecv, flight.place.flat, self._global(flight.leg.source), self.group)
        flight.sends = dist.batch_isend_irecv([receive, dist.P2POp(dist.isend, flat, self._global(to), self.group)])

    @property
    def _process_group(self) -> dist.ProcessGroup:
        group = self.group or dist.group.WORLD
        assert group is not None  # it is there since `__init__`
        return group

    def _apart(self, flight: Flight) -> bool:
        """Gloo's sends and receives go their own ways; others' must be begun in pairs."""
        return flight.place.flat.device.type in self._gloo

    def _await_head(self, flight: Flight) -> None:
        """Until the next message may be asked for; where exchanges are begun in pairs, until this one has ended."""
        if flight.receives:
            flight.receives[-1].pop(0).wait()
            return
        while flight.sends:
            flight.sends.pop(0).wait()

    def _arrive(self, flight: Flight) -> list[Tensor]:
        """Wait for the next parcel, and with the last one until all is sent; the items are in their place."""
        works = flight.receives[flight.arrived] if flight.receives else []
        flight.arrived += 1
        for work in works + flight.sends if flight.ended else works:
            work.wait()
        return flight.place.items

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


def parcels_of(sizes: Sequence[int]) -> list[range]:
    """Items that travel together, so that each parcel is worth it and there are a few of them."""
    enough = max(_PARCEL, sum(sizes) // _PARCELS)
    parcels, begin, filled = list[range](), 0, 0
    for at, size in enumerate(sizes):
        filled += size
        if filled >= enough:
            parcels.append(range(begin, at + 1))
            begin, filled = at + 1, 0
    if begin < len(sizes):  # too little for one more
        parcels.append(range(parcels.pop().start if parcels else 0, len(sizes)))
    return parcels


def head_and_tail(parcel: Tensor) -> list[Tensor]:
    """The last parcel as it is sent: in one piece if it is short."""
    tail = _TAIL // parcel.element_size()
    return [parcel] if parcel.numel() < 2 * tail else [parcel[:-tail], parcel[-tail:]]


def _adjacent(items: Sequence[Tensor]) -> bool:
    storage, end = items[0].untyped_storage().data_ptr(), items[0].data_ptr()
    for item in items:
        if item.data_ptr() != end or not item.is_contiguous() or item.untyped_storage().data_ptr() != storage:
            return False
        end += item.numel() * item.element_size()
    return True


def split(flat: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    return [flat] if len(sizes) == 1 else list(torch.split(flat, list(sizes)))
