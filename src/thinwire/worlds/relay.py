"""Messages of unequal length, passed on from rank to rank until all have all of them."""

import select
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.core.buffers import Buffers
from thinwire.core.ops import checked_lengths
from thinwire.worlds.streams import Stream, wait

_CHUNK = 1 << 14  # bytes that are worth being passed on by themselves


class Relay:
    """One rank's part: its own items, and behind them what comes from the rank before, go to the next rank.

    Bytes are passed on as they come, so that a long message is under way on all links at the same time. In front of a
    rank's items goes a head, which says whose they are and how long each is.
    """

    def __init__(self, rank: int, streams: dict[int, Stream], serial: int, buffers: Buffers, patience: float) -> None:
        """`serial`: which journey it is, on all ranks; `patience`: seconds in which something must come or go."""
        self.rank, self.ranks = rank, len(streams) + 1
        self.serial, self.buffers, self.patience = serial & 0xFFFFFFFF, buffers, patience
        self.next, self.before = streams[(rank + 1) % self.ranks], streams[(rank - 1) % self.ranks]

    def make(self, items: Sequence[Tensor]) -> list[list[Tensor]]:
        """The items of every rank, by rank; all give as many, of bytes."""
        head = self._head(self.rank, [item.numel() for item in items])
        self.next.give([memoryview(head), *(item.numpy().data for item in items)])
        found = {self.rank: list(items)}
        for hop in range(1, self.ranks):
            source = (self.rank - hop) % self.ranks
            found[source] = self._taken(source, len(items), onward=hop < self.ranks - 1)
        while not self.next.send():
            wait({self.next: select.POLLOUT}, self.patience)
        return [found[rank] for rank in range(self.ranks)]

    def _taken(self, source: int, count: int, onward: bool) -> list[Tensor]:
        """Receive the items of a rank, and pass them on."""
        head = memoryview(bytearray(4 * (2 + count)))
        self._arrive(head, onward)
        _, _, *lengths = struct.unpack(f"<{2 + count}I", head)
        if head != self._head(source, checked_lengths(lengths)):
            raise self.before.confused()
        place = self.buffers.empty(sum(lengths), torch.uint8, torch.device("cpu"))
        for low in range(0, sum(lengths), _CHUNK):
            self._arrive(place[low : low + _CHUNK].numpy().data, onward)
        return list(torch.split(place, lengths))

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

    def _head(self, source: int, lengths: list[int]) -> bytes:
        return struct.pack(f"<{2 + len(lengths)}I", self.serial, source, *checked_lengths(lengths))
