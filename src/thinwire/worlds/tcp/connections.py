"""TCP connections of this rank to every other rank of a process group.

Gloo sends a message after its receiver has asked for it. Over these connections a rank sends bytes as soon as it has
them, and they wait in the receiver's kernel. So neither rank waits until a thread of the other one runs.
`tcp.handshake` opens the connections.
"""

import select
import socket
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice

from thinwire.errors import WorldError

_UNSENT_LIMIT = 1 << 16  # unsent bytes in the kernel, from which it accepts no more
_BUFFERS_PER_CALL = 64  # that one sendmsg gets; the kernel refuses more than 1,024
_LONGEST_WAIT = 2**31 - 1  # milliseconds that poll accepts


class Connection:
    """Bytes to and from one peer, in order, over a socket that does not block."""

    def __init__(self, connected: socket.socket, peer: int) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_LIMIT)
        self.socket, self.peer = connected, peer
        self._unsent: deque[memoryview] = deque()
        self._unfilled = memoryview(b"")  # the rest of the buffer that `receive` fills

    def queue(self, parts: Sequence[memoryview]) -> None:
        """Add bytes to send; they must not change before `send` has sent all."""
        self._unsent.extend(part for part in parts if part.nbytes)

    def receive_into(self, buffer: memoryview) -> None:
        """Let `receive` fill this buffer; the one before it must be full."""
        self._unfilled = buffer

    def send(self) -> bool:
        """Send as much as the kernel accepts; True: nothing is left to send."""
        while self._unsent:
            try:
                self._remove_sent(self.socket.sendmsg(islice(self._unsent, _BUFFERS_PER_CALL)))
            except BlockingIOError:
                return False
            except OSError as reason:
                raise self._lost(reason) from reason
        return True

    def receive(self) -> bool:
        """Receive as much as has arrived; True: the buffer is full."""
        while self._unfilled.nbytes:
            try:
                count = self.socket.recv_into(self._unfilled)
            except BlockingIOError:
                return False
            except OSError as reason:
                raise self._lost(reason) from reason
            if count == 0:
                raise self._lost("it was closed at the other end")
            self._unfilled = self._unfilled[count:]
        return True

    def _remove_sent(self, count: int) -> None:
        """Remove the first `count` bytes from what is to be sent."""
        while count:
            first = self._unsent[0]
            if count < first.nbytes:
                self._unsent[0] = first[count:]
                return
            count -= self._unsent.popleft().nbytes

    def _lost(self, reason: object) -> WorldError:
        return WorldError(f"the connection to rank {self.peer} is lost ({reason})")

    def shut_down(self) -> None:
        """End the connection at both ends, even if a forked process holds it too."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.socket.close()


def wait(events: Mapping[Connection, int], timeout: float) -> None:
    """Wait until one of these connections is ready for its events (`select.POLLIN`, `POLLOUT`) or lost.

    `timeout`: seconds after which it is an error that none is.
    """
    poll = select.poll()
    for connection, mask in events.items():
        poll.register(connection.socket, mask)
    if not poll.poll(min(1000 * timeout, _LONGEST_WAIT)):
        silent = ", ".join(str(peer) for peer in sorted(connection.peer for connection in events))
        raise WorldError(f"rank {silent} did not answer for {timeout:g} s")


class Connections:
    """The connections of a group, which perform one exchange after the other."""

    def __init__(self, by_rank: dict[int, Connection], timeout: float) -> None:
        """`timeout`: seconds after which a peer that neither sends nor receives is an error."""
        self.by_rank, self.timeout = by_rank, timeout
        self.exchanges = 0
        self.closed = False
        self._busy = threading.Lock()

    @contextmanager
    def exchange(self) -> Iterator[int]:
        """The number of the next exchange. If it fails, all connections end, so that no peer waits for the rest."""
        if self.closed:
            raise WorldError("the connections to the other ranks are closed, because an exchange failed before")
        if not self._busy.acquire(blocking=False):
            raise WorldError("two threads average on one process group at the same time; give each a group of its own")
        self.exchanges += 1
        try:
            yield self.exchanges
        except BaseException:
            for connection in self.by_rank.values():
                connection.shut_down()
            self.close()
            raise
        finally:
            self._busy.release()

    def close(self) -> None:
        self.closed = True
        for connection in self.by_rank.values():
            connection.close()

    def __del__(self) -> None:
        self.close()
