"""Connections of this rank's own to every other rank of a process group, for messages that follow each other closely.

Gloo sends a message when its receiver has said that it waits for it. Over these sockets, bytes leave when they are
there and wait in the receiver's kernel until they are wanted, so that neither side must wait for the other's thread to
run. `worlds.handshake` opens them.
"""

import select
import socket
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice

from thinwire.errors import WorldError

_WAITING = 1 << 16  # bytes in the kernel that have not been sent yet, from which it takes no more
_TOGETHER = 64  # pieces of memory that the kernel is given at once; it refuses more than 1,024
_LONGEST_WAIT = 2**31 - 1  # milliseconds that can be waited for


class Stream:
    """Bytes to and from one peer, in order, over a socket that does not block."""

    def __init__(self, connection: socket.socket, peer: int) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _WAITING)
        self.connection, self.peer = connection, peer
        self._leaving: deque[memoryview] = deque()
        self._coming = memoryview(b"")  # what is still empty of a place

    def give(self, parts: Sequence[memoryview]) -> None:
        """Bytes to send behind all that were given before; they must stay as they are until `send` has sent all."""
        self._leaving.extend(part for part in parts if part.nbytes)

    def want(self, place: memoryview) -> None:
        """Receive into this place; the one before it must be full."""
        self._coming = place

    def send(self) -> bool:
        """As much as goes; whether that is all."""
        while self._leaving:
            try:
                self._drop(self.connection.sendmsg(islice(self._leaving, _TOGETHER)))
            except BlockingIOError:
                return False
            except OSError as reason:
                raise self._lost(reason) from reason
        return True

    def receive(self) -> bool:
        """As much as has come; whether that is all that is wanted."""
        while self._coming.nbytes:
            try:
                came = self.connection.recv_into(self._coming)
            except BlockingIOError:
                return False
            except OSError as reason:
                raise self._lost(reason) from reason
            if came == 0:
                raise self._lost("it was closed at the other end")
            self._coming = self._coming[came:]
        return True

    def _drop(self, count: int) -> None:
        """So many bytes have left."""
        while count:
            first = self._leaving[0]
            if count < first.nbytes:
                self._leaving[0] = first[count:]
                return
            count -= self._leaving.popleft().nbytes

    def _lost(self, reason: object) -> WorldError:
        return WorldError(f"the connection to rank {self.peer} is lost ({reason})")

    def cut_off(self) -> None:
        """Let the peer know that no more comes, even if a forked process has the connection too."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.connection.close()


def wait(awaited: Mapping[Stream, int], patience: float) -> None:
    """Until the kernel has what is awaited of one of these streams (`select.POLLIN`, `POLLOUT`), or it is lost."""
    poll = select.poll()
    for stream, events in awaited.items():
        poll.register(stream.connection, events)
    if not poll.poll(min(1000 * patience, _LONGEST_WAIT)):
        silent = ", ".join(str(peer) for peer in sorted(stream.peer for stream in awaited))
        raise WorldError(f"rank {silent} did not answer for {patience:g} s")


class Streams:
    """Connections to all other ranks of a group, on which one journey follows the other."""

    def __init__(self, streams: dict[int, Stream], patience: float) -> None:
        """`patience`: seconds after which a peer that does not answer is an error."""
        self.streams, self.patience = streams, patience
        self.journeys = 0
        self.closed = False
        self._busy = threading.Lock()

    @contextmanager
    def journey(self) -> Iterator[int]:
        """The number of the next journey. If it fails, all connections end: peers must not wait for the rest of it."""
        if self.closed:
            raise WorldError("the connections to the other ranks are closed, because an exchange failed before")
        if not self._busy.acquire(blocking=False):
            raise WorldError("two threads average on one process group at the same time; give each a group of its own")
        self.journeys += 1
        try:
            yield self.journeys
        except BaseException:
            for stream in self.streams.values():
                stream.cut_off()
            self.close()
            raise
        finally:
            self._busy.release()

    def close(self) -> None:
        self.closed = True
        for stream in self.streams.values():
            stream.close()

    def __del__(self) -> None:
        self.close()
