"""Journeys over streams: messages leave and are taken in one order, and work fills the time between them.

The items of a leg travel in parcels, one behind the other. A parcel's legs that need nothing come first; those that
need them come behind the first legs of the next parcel, so that what they need has arrived by then. On each connection
the order is the same for its sender and its receiver. A parcel is a frame: its header says which one it is and how long
its items are, and all of it is checked before a byte is used.
"""

import select
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from thinwire.core.buffers import Buffers
from thinwire.core.ops import Hops, Leg
from thinwire.worlds.frames import Header, header_bytes, header_size, read_header
from thinwire.worlds.streams import Stream, wait

_PARCEL = 1 << 16  # bytes that are worth a parcel of their own
_PARCELS = 8  # of a leg
_AHEAD = 2  # parcels that are made and have not left this process


class Parcel(NamedTuple):
    """Some of the items of one leg."""

    leg: int
    number: int  # among the parcels of its leg


def parcels_of(sizes: Sequence[int]) -> list[range]:
    """Items that travel together, so that each parcel is worth it and there are a few of them."""
    enough = max(_PARCEL, -(-sum(sizes) // _PARCELS))
    parcels, begin, filled = list[range](), 0, 0
    for at, size in enumerate(sizes):
        filled += size
        if filled >= enough:
            parcels.append(range(begin, at + 1))
            begin, filled = at + 1, 0
    if begin < len(sizes):  # too little for one more
        parcels.append(range(parcels.pop().start if parcels else 0, len(sizes)))
    return parcels


def order_of(legs: Sequence[Leg], parcels: int) -> list[Parcel]:
    """All parcels of a journey as they leave, and as they are taken."""
    depth: list[int] = []
    for leg in legs:
        depth.append(0 if leg.needs < 0 else depth[leg.needs] + 1)
    every = [Parcel(leg, number) for number in range(parcels) for leg in range(len(legs))]
    return sorted(every, key=lambda parcel: (parcel.number + depth[parcel.leg], depth[parcel.leg], parcel.leg))


class Arrival:
    """What comes from one peer: the header of a parcel, and behind it the items."""

    def __init__(self, stream: Stream, parcels: Sequence[Parcel]) -> None:
        self.stream = stream
        self.parcels = deque(parcels)
        self.head = bytearray()
        self.header: Header | None = None  # None: it has not come
        self.items: list[Tensor] = []
        self.place = torch.empty(0, dtype=torch.uint8)


class Journey:
    """One journey of this rank."""

    def __init__(self, op: Hops, streams: dict[int, Stream], serial: int, buffers: Buffers, patience: float) -> None:
        """`serial`: which journey it is, on all ranks; `patience`: seconds in which something must come or go."""
        self.op, self.serial, self.buffers, self.patience = op, serial & 0xFFFFFFFF, buffers, patience
        self.sizes = op.sizes
        self.contents = parcels_of([item.about for item in op.items])  # items of parcels
        order = order_of(op.legs, len(self.contents))
        self.to_make, self.to_take = deque(order), deque(order)
        self.leaving: deque[tuple[Parcel, Stream, list[memoryview]]] = deque()
        self.taken = [-1] * len(self.contents)  # the last leg of which they are taken
        self.streams = [streams[leg.to] for leg in op.legs]
        self.arrivals = {
            source: Arrival(streams[source], [p for p in order if op.legs[p.leg].source == source])
            for source in {leg.source for leg in op.legs}
        }

    def make(self) -> None:
        for arrival in self.arrivals.values():
            self._expect(arrival)
        while True:
            self._send()
            if self._make_next() or self._take_next():
                continue
            if not (self.leaving or self.to_take):
                return
            if not any(spare() for spare in self.op.spares):
                self._wait()

    def _make_next(self) -> bool:
        """Make a parcel and send it, or a part of it; False: that cannot or need not be done now."""
        if not self.to_make or len(self.leaving) == _AHEAD:
            return False
        parcel = self.to_make[0]
        if self.taken[parcel.number] < self.op.legs[parcel.leg].needs:
            return False
        if not all(self.op.prepared(parcel.leg, at) for at in self.contents[parcel.number]):
            return True  # what leaves must not wait for all of it
        self.to_make.popleft()
        items = [self.op.given(parcel.leg, at) for at in self.contents[parcel.number]]
        head = header_bytes((self.serial, *parcel), items)
        self._leave(parcel, [memoryview(head), *(item.numpy().data for item in items)])
        return True

    def _leave(self, parcel: Parcel, parts: list[memoryview]) -> None:
        """Send behind all that is leaving; the order of parcels holds across connections, so that each has its info."""
        self.leaving.append((parcel, self.streams[parcel.leg], parts))
        if len(self.leaving) == 1:
            self.streams[parcel.leg].give(parts)

    def _send(self) -> None:
        """Hand the kernel what it takes."""
        while self.leaving and self.leaving[0][1].send():
            parcel = self.leaving.popleft()[0]
            if self.leaving:
                _, stream, parts = self.leaving[0]
                stream.give(parts)
            self._let_go(parcel)

    def _let_go(self, parcel: Parcel) -> None:
        for at in self.contents[parcel.number]:
            self.op.gone(parcel.leg, at)

    def _expect(self, arrival: Arrival) -> None:
        """Ask for the head of a peer's next parcel."""
        if arrival.parcels:
            parcel = arrival.parcels[0]
            size = header_size((self.serial, *parcel), len(self.contents[parcel.number]))
            arrival.head, arrival.header = bytearray(size), None
            arrival.stream.want(memoryview(arrival.head))

    def _take_next(self) -> bool:
        """Take the next parcel; False: it is not there yet."""
        if not self.to_take:
            return False
        parcel = self.to_take[0]
        arrival = self.arrivals[self.op.legs[parcel.leg].source]
        if not arrival.stream.receive():
            return False
        if arrival.header is None:
            arrival.header = self._announced(arrival, parcel)
            self._make_room(arrival, arrival.header.lengths)
            if not arrival.stream.receive():
                return False
        arrival.header.check_items(arrival.items, arrival.stream.peer)
        self.to_take.popleft()
        arrival.parcels.popleft()
        for at, item in zip(self.contents[parcel.number], arrival.items, strict=True):
            self.op.taken(parcel.leg, at, item)
        self.taken[parcel.number] = parcel.leg
        self._expect(arrival)
        return True

    def _announced(self, arrival: Arrival, parcel: Parcel) -> Header:
        """The header of a parcel, which must be the one that is due."""
        contents = self.contents[parcel.number]
        sizes = None if self.sizes is None else [self.sizes[at] for at in contents]
        longest = [self.op.items[at].longest for at in contents]
        return read_header(arrival.head, (self.serial, *parcel), sizes, longest, arrival.stream.peer)

    def _make_room(self, arrival: Arrival, sizes: list[int]) -> None:
        size = sum(sizes)
        if size > arrival.place.numel():
            arrival.place = self.buffers.empty(size, torch.uint8, self.op.device)
        arrival.stream.want(arrival.place.numpy().data[:size])
        arrival.items = list(torch.split(arrival.place[:size], sizes))

    def _wait(self) -> None:
        """Until the kernel takes more of what leaves, or has more of what is taken next."""
        wanted: dict[Stream, int] = {}
        if self.leaving:
            wanted[self.leaving[0][1]] = select.POLLOUT
        if self.to_take:
            source = self.arrivals[self.op.legs[self.to_take[0].leg].source].stream
            wanted[source] = wanted.get(source, 0) | select.POLLIN
        wait(wanted, self.patience)
