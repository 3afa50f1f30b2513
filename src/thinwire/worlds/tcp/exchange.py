"""Pipelined exchanges over TCP: all ranks send and receive frames in one order, and compute between them.

The items of a hop are sent in frames. The frames of hops that need nothing come first. The frame of a hop that needs
another one comes after the first hops of the next frame, so that what it needs has arrived by then. On each connection
the order is the same for the sender and the receiver. The header of a frame says which frame it is and how long its
items are. A rank checks all of a frame before it uses a byte.
"""

import select
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from thinwire.core.buffers import Buffers
from thinwire.core.ops import Hop, PipelinedExchange
from thinwire.worlds.tcp.connections import Connection, wait
from thinwire.worlds.tcp.frames import Header, header_bytes, header_size, read_header

_FRAME_BYTES = 1 << 16  # that are worth a frame of their own
_MAX_FRAMES = 8  # of a hop
_MAX_QUEUED = 2  # frames that are made and not sent


class Frame(NamedTuple):
    """Some of the items of one hop."""

    hop: int
    number: int  # among the frames of its hop


def split_into_frames(sizes: Sequence[int]) -> list[range]:
    """The items of each frame: a few frames, each of them long enough to be worth it."""
    enough = max(_FRAME_BYTES, -(-sum(sizes) // _MAX_FRAMES))
    frames, begin, filled = list[range](), 0, 0
    for index, size in enumerate(sizes):
        filled += size
        if filled >= enough:
            frames.append(range(begin, index + 1))
            begin, filled = index + 1, 0
    if begin < len(sizes):  # too little for one more
        frames.append(range(frames.pop().start if frames else 0, len(sizes)))
    return frames


def frame_order(hops: Sequence[Hop], frames: int) -> list[Frame]:
    """All frames of an exchange in the order in which a rank sends and receives them."""
    depth: list[int] = []
    for hop in hops:
        depth.append(0 if hop.needs < 0 else depth[hop.needs] + 1)
    every = [Frame(hop, number) for number in range(frames) for hop in range(len(hops))]
    return sorted(every, key=lambda frame: (frame.number + depth[frame.hop], depth[frame.hop], frame.hop))


class Incoming:
    """The frames that one peer sends: of each a header, and after it the items."""

    def __init__(self, connection: Connection, frames: Sequence[Frame]) -> None:
        self.connection = connection
        self.frames = deque(frames)
        self.raw_header = bytearray()
        self.header: Header | None = None  # None: it has not arrived
        self.items: list[Tensor] = []
        self.buffer = torch.empty(0, dtype=torch.uint8)


class Exchange:
    """This rank's part in one pipelined exchange."""

    def __init__(
        self,
        op: PipelinedExchange,
        connections: dict[int, Connection],
        serial: int,
        buffers: Buffers,
        timeout: float,
    ) -> None:
        """`serial`: the number of the exchange, equal on all ranks; `timeout`: seconds without any byte in or out."""
        self.op, self.serial, self.buffers, self.timeout = op, serial & 0xFFFFFFFF, buffers, timeout
        self.sizes = op.sizes
        self.contents = split_into_frames([item.expected_size for item in op.items])  # indices of items
        order = frame_order(op.hops, len(self.contents))
        self.to_make, self.to_receive = deque(order), deque(order)
        self.queued: deque[tuple[Frame, Connection, list[memoryview]]] = deque()
        self.received = [-1] * len(self.contents)  # the last hop of which each frame has arrived
        self.outgoing = [connections[hop.to] for hop in op.hops]
        self.incoming = {
            source: Incoming(connections[source], [f for f in order if op.hops[f.hop].source == source])
            for source in {hop.source for hop in op.hops}
        }

    def run(self) -> None:
        for incoming in self.incoming.values():
            self._expect_header(incoming)
        while True:
            self._send()
            if self._make_next() or self._receive_next():
                continue
            if not (self.queued or self.to_receive):
                return
            if not any(work() for work in self.op.on_idle):
                self._wait()

    def _make_next(self) -> bool:
        """Make the next frame and queue it, or do a part of the work for it; False: there is nothing to make now."""
        if not self.to_make or len(self.queued) == _MAX_QUEUED:
            return False
        frame = self.to_make[0]
        if self.received[frame.number] < self.op.hops[frame.hop].needs:
            return False
        if not all(self.op.prepare(frame.hop, index) for index in self.contents[frame.number]):
            return True  # frames in the queue must not wait until all of the work is done
        self.to_make.popleft()
        items = [self.op.next_message(frame.hop, index) for index in self.contents[frame.number]]
        header = header_bytes((self.serial, *frame), items)
        self._queue(frame, [memoryview(header), *(item.numpy().data for item in items)])
        return True

    def _queue(self, frame: Frame, parts: list[memoryview]) -> None:
        """Send a frame after all that are queued, also those on other connections: each gets the link for itself."""
        self.queued.append((frame, self.outgoing[frame.hop], parts))
        if len(self.queued) == 1:
            self.outgoing[frame.hop].queue(parts)

    def _send(self) -> None:
        """Pass the kernel as much as it accepts."""
        while self.queued and self.queued[0][1].send():
            frame = self.queued.popleft()[0]
            if self.queued:
                _, connection, parts = self.queued[0]
                connection.queue(parts)
            for index in self.contents[frame.number]:
                self.op.on_sent(frame.hop, index)

    def _expect_header(self, incoming: Incoming) -> None:
        """Begin to receive the header of a peer's next frame."""
        if incoming.frames:
            frame = incoming.frames[0]
            size = header_size((self.serial, *frame), len(self.contents[frame.number]))
            incoming.raw_header, incoming.header = bytearray(size), None
            incoming.connection.receive_into(memoryview(incoming.raw_header))

    def _receive_next(self) -> bool:
        """Receive the next frame and pass its items on; False: not all of it has arrived."""
        if not self.to_receive:
            return False
        frame = self.to_receive[0]
        incoming = self.incoming[self.op.hops[frame.hop].source]
        if not incoming.connection.receive():
            return False
        if incoming.header is None:
            incoming.header = self._read_header(incoming, frame)
            self._expect_items(incoming, incoming.header.lengths)
            if not incoming.connection.receive():
                return False
        incoming.header.check_items(incoming.items, incoming.connection.peer)
        self.to_receive.popleft()
        incoming.frames.popleft()
        for index, item in zip(self.contents[frame.number], incoming.items, strict=True):
            self.op.on_message(frame.hop, index, item)
        self.received[frame.number] = frame.hop
        self._expect_header(incoming)
        return True

    def _read_header(self, incoming: Incoming, frame: Frame) -> Header:
        """The header that has arrived, which must be the header of this frame."""
        contents = self.contents[frame.number]
        sizes = None if self.sizes is None else [self.sizes[index] for index in contents]
        longest = [self.op.items[index].longest for index in contents]
        return read_header(incoming.raw_header, (self.serial, *frame), sizes, longest, incoming.connection.peer)

    def _expect_items(self, incoming: Incoming, sizes: list[int]) -> None:
        """Begin to receive the items of a frame."""
        size = sum(sizes)
        if size > incoming.buffer.numel():
            incoming.buffer = self.buffers.empty(size, torch.uint8, self.op.device)
        incoming.connection.receive_into(incoming.buffer.numpy().data[:size])
        incoming.items = list(torch.split(incoming.buffer[:size], sizes))

    def _wait(self) -> None:
        """Wait until the kernel accepts more of the first queued frame, or has more of the next one to receive."""
        events: dict[Connection, int] = {}
        if self.queued:
            events[self.queued[0][1]] = select.POLLOUT
        if self.to_receive:
            source = self.incoming[self.op.hops[self.to_receive[0].hop].source].connection
            events[source] = events.get(source, 0) | select.POLLIN
        wait(events, self.timeout)
