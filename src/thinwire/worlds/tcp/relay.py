"""Gathers items of unequal length: ranks form a ring, and each forwards what it receives to the next one."""

import select
from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.core.buffers import Buffers
from thinwire.worlds.tcp.connections import Connection, wait
from thinwire.worlds.tcp.frames import header_bytes, header_size, read_header

_CHUNK = 1 << 14  # bytes that are forwarded together


class Relay:
    """One rank's part: it sends its own items to the next rank, and after them all that the rank before sends.

    A rank forwards bytes as they arrive, so that a long message is in flight on all links at the same time. A header
    before a rank's items says whose they are and how long each is. The first sender computes the checksum. If items are
    damaged on one link, every rank after it refuses them.
    """

    def __init__(
        self, rank: int, connections: dict[int, Connection], serial: int, buffers: Buffers, timeout: float
    ) -> None:
        """`serial`: the number of the exchange, equal on all ranks; `timeout`: seconds without any byte in or out."""
        self.rank, self.ranks = rank, len(connections) + 1
        self.serial, self.buffers, self.timeout = serial & 0xFFFFFFFF, buffers, timeout
        self.next, self.previous = connections[(rank + 1) % self.ranks], connections[(rank - 1) % self.ranks]

    def run(self, items: Sequence[Tensor], longest: int) -> list[list[Tensor]]:
        """The items of every rank, by rank; all ranks send as many, each of at most `longest` bytes."""
        header = header_bytes((self.serial, self.rank), items)
        self.next.queue([memoryview(header), *(item.numpy().data for item in items)])
        by_rank = {self.rank: list(items)}
        for distance in range(1, self.ranks):
            source = (self.rank - distance) % self.ranks
            by_rank[source] = self._receive_items(source, [longest] * len(items), forward=distance < self.ranks - 1)
        while not self.next.send():
            wait({self.next: select.POLLOUT}, self.timeout)
        return [by_rank[rank] for rank in range(self.ranks)]

    def _receive_items(self, source: int, longest: Sequence[int], forward: bool) -> list[Tensor]:
        """Receive the items of one rank; `forward`: send them to the next rank too."""
        identity = (self.serial, source)
        raw_header = bytearray(header_size(identity, len(longest)))
        self._receive(memoryview(raw_header), forward=False)
        header = read_header(raw_header, identity, None, longest, self.previous.peer)
        if forward:
            self.next.queue([memoryview(raw_header)])
        size = sum(header.lengths)
        buffer = self.buffers.empty(size, torch.uint8, torch.device("cpu"))
        for low in range(0, size, _CHUNK):
            self._receive(buffer[low : low + _CHUNK].numpy().data, forward)
        items = list(torch.split(buffer, header.lengths))
        header.check_items(items, source)
        return items

    def _receive(self, buffer: memoryview, forward: bool) -> None:
        """Fill the buffer, and send queued bytes at the same time; then queue the buffer if it is to be forwarded."""
        self.previous.receive_into(buffer)
        while True:
            all_sent = self.next.send()
            if self.previous.receive():
                break
            events = {} if all_sent else {self.next: select.POLLOUT}
            events[self.previous] = events.get(self.previous, 0) | select.POLLIN
            wait(events, self.timeout)
        if forward:
            self.next.queue([buffer])
            self.next.send()
