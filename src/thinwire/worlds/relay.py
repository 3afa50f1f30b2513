"""Messages of unequal length, passed on from rank to rank until all have all of them."""

import select
from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.core.buffers import Buffers
from thinwire.worlds.frames import header_bytes, header_size, read_header
from thinwire.worlds.streams import Stream, wait

_CHUNK = 1 << 14  # bytes that are worth being passed on by themselves


class Relay:
    """One rank's part: its own items, and behind them what comes from the rank before, go to the next rank.

    Bytes are passed on as they come, so that a long message is under way on all links at the same time. In front of a
    rank's items goes a header, which says whose they are and how long each is. Its checksum is the first sender's:
    items that were damaged on their way are refused by every rank behind the damage.
    """

    def __init__(self, rank: int, streams: dict[int, Stream], serial: int, buffers: Buffers, patience: float) -> None:
        """`serial`: which journey it is, on all ranks; `patience`: seconds in which something must come or go."""
        self.rank, self.ranks = rank, len(streams) + 1
        self.serial, self.buffers, self.patience = serial & 0xFFFFFFFF, buffers, patience
        self.next, self.before = streams[(rank + 1) % self.ranks], streams[(rank - 1) % self.ranks]

    def make(self, items: Sequence[Tensor], longest: int) -> list[list[Tensor]]:
        """The items of every rank, by rank; all give as many, each of at most `longest` bytes."""
        head = header_bytes((self.serial, self.rank), items)
        self.next.give([memoryview(head), *(item.numpy().data for item in items)])
        found = {self.rank: list(items)}
        for hop in range(1, self.ranks):
            source = (self.rank - hop) % self.ranks
            found[source] = self._taken(source, [longest] * len(items), onward=hop < self.ranks - 1)
        while not self.next.send():
            wait({self.next: select.POLLOUT}, self.patience)
        return [found[rank] for rank in range(self.ranks)]

    def _taken(self, source: int, longest: Sequence[int], onward: bool) -> list[Tensor]:
        """Receive the items of a rank, and pass them on."""
        identity = (self.serial, source)
        head = bytearray(header_size(identity, len(longest)))
        self._arrive(memoryview(head), onward=False)
        header = read_header(head, identity, None, longest, self.before.peer)
        if onward:
            self.next.give([memoryview(head)])
        size = sum(header.lengths)
        place = self.buffers.empty(size, torch.uint8, torch.device("cpu"))
        for low in range(0, size, _CHUNK):
            self._arrive(place[low : low + _CHUNK].numpy().data, onward)
        items = list(torch.split(place, header.lengths))
        header.check_items(items, source)
        return items

    def _arrive(self, place: memoryview, onward: bool) -> None:
        """Fill the place, and send what is leaving meanwhile; pass it on."""
        self.before.want(place)
        while True:
            sent = self.next.send()
            if self.before.receive():
                break
            awaited = {} if sent else {self.next: select.POLLOUT}
            awaited[self.before] = awaited.get(self.before, 0) | select.POLLIN
            wait(awaited, self.patience)
        if onward:
            self.next.give([place])
            self.next.send()
