"""The ranks of a process group open TCP connections to each other.

Each rank publishes its addresses and a random token through the process group. A rank connects to every lower rank and
listens for the higher ones. The connecting rank sends the listener's token and its own rank; the listener replies with
the token of the connecting rank. One loop serves all connections, and each has a deadline, so that a connection that is
silent or slow delays no other. Ports are open only while the ranks connect.
"""

import errno
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from thinwire.worlds.tcp.addresses import own_addresses
from thinwire.worlds.tcp.connections import Connection

GatherObjects: TypeAlias = Callable[[Any], list[Any]]  # takes this rank's object; returns those of all ranks
Endpoint: TypeAlias = tuple[bytes, list[tuple[str, int]]]  # a rank's token and addresses

CONNECT_TIMEOUT = 10.0  # seconds in which all connections must be open
_TOKEN_TIMEOUT = 2.0  # seconds in which a connecting peer must have sent its token and rank
_MAX_UNKNOWN = 256  # accepted connections without a token; when there are more, the oldest is closed
_BACKLOG = 4096  # connections that the kernel keeps until they are accepted
_TOKEN = 16  # bytes
_RANK = struct.Struct("<I")


def connect(rank: int, ranks: int, gather: GatherObjects) -> dict[int, Connection] | None:
    """A connection to every other rank; None, on all ranks, if some of them cannot reach each other."""
    listeners = _listeners(own_addresses())
    try:
        token = secrets.token_bytes(_TOKEN)
        endpoints = gather((token, [listener.getsockname()[:2] for listener in listeners]))
        found = _Handshake(rank, endpoints, listeners, time.monotonic() + CONNECT_TIMEOUT).run()
        # no rank uses its connections if another rank lacks one
        if not all(gather(len(found) == ranks - 1)):
            for connected in found.values():
                connected.close()
            return None
        return {peer: Connection(connected, peer) for peer, connected in found.items()}
    finally:
        for listener in listeners:
            listener.close()


def _listeners(addresses: Sequence[str]) -> list[socket.socket]:
    listeners = []
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            listeners.append(socket.create_server((address, 0), family=family, backlog=_BACKLOG))
        except OSError:
            continue  # the name of this host resolves to an address that it does not have
    return listeners


@dataclass(eq=False)
class _Pending:
    """A connection whose peer has not sent the right token yet."""

    socket: socket.socket
    deadline: float
    peer: int | None = None  # the rank that this rank connects to; None: the connection was accepted
    token_sent: bool = False  # by this rank, on a connection that it opened
    received: bytearray = field(default_factory=bytearray)

    @property
    def missing(self) -> int:
        """Bytes that the peer must still send."""
        return _TOKEN + (_RANK.size if self.peer is None else 0) - len(self.received)


class _Handshake:
    """One rank's part: it accepts and opens connections in one loop."""

    def __init__(
        self, rank: int, endpoints: Sequence[Endpoint], listeners: Sequence[socket.socket], deadline: float
    ) -> None:
        self.rank, self.endpoints, self.deadline = rank, endpoints, deadline
        self.found: dict[int, socket.socket] = {}
        self._pending: dict[int, _Pending] = {}  # by descriptor, the oldest first
        self._untried = {peer: list(endpoints[peer][1]) for peer in range(rank)}  # addresses of lower ranks
        self._listening = {listener.fileno(): listener for listener in listeners}
        self._poll = select.poll()
        for listener in listeners:
            listener.setblocking(False)
            self._poll.register(listener, select.POLLIN)

    def run(self) -> dict[int, socket.socket]:
        """Connections by rank: all of them, or those that could be opened."""
        try:
            for peer in range(self.rank):
                self._connect_to(peer)
            while len(self.found) < len(self.endpoints) - 1 and (self._listening or self._pending):
                now = time.monotonic()
                if now >= self.deadline:
                    break
                soonest = min([self.deadline, *(pending.deadline for pending in self._pending.values())])
                for descriptor, _ in self._poll.poll(1000 * max(soonest - now, 0) + 1):
                    if descriptor in self._listening:
                        self._accept(self._listening[descriptor])
                    elif descriptor in self._pending:
                        self._advance(self._pending[descriptor])
                self._close_late()
        except ConnectionError:
            pass  # one peer cannot be reached: no need to wait for the others
        finally:
            for pending in list(self._pending.values()):
                self._close(pending)
        return self.found

    def _connect_to(self, peer: int) -> None:
        """Begin to connect to the next address of a peer; each address has its share of the time that is left."""
        while self._untried[peer]:
            left = (self.deadline - time.monotonic()) / len(self._untried[peer])
            address, port = self._untried[peer].pop(0)
            opened = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
            opened.setblocking(False)
            try:
                refused = opened.connect_ex((address, port))
            except OSError as reason:  # not an address
                refused = reason.errno or errno.EINVAL
            if refused in (0, errno.EINPROGRESS):
                self._register(_Pending(opened, time.monotonic() + left, peer), select.POLLOUT)
                return
            opened.close()
        raise ConnectionError(f"no address of rank {peer} can be reached")

    def _accept(self, listener: socket.socket) -> None:
        unknown = [pending for pending in self._pending.values() if pending.peer is None]
        if len(unknown) >= _MAX_UNKNOWN:
            self._close(unknown[0])
        try:
            accepted, _ = listener.accept()
        except OSError as reason:
            if reason.errno in (errno.EMFILE, errno.ENFILE) and unknown:
                self._close(unknown[0])
            return
        accepted.setblocking(False)
        self._register(_Pending(accepted, time.monotonic() + _TOKEN_TIMEOUT), select.POLLIN)

    def _register(self, pending: _Pending, events: int) -> None:
        self._pending[pending.socket.fileno()] = pending
        self._poll.register(pending.socket, events)

    def _advance(self, pending: _Pending) -> None:
        """Continue with a connection that is ready."""
        try:
            if pending.peer is not None and not pending.token_sent:
                self._send_token(pending, pending.peer)
                return
            data = pending.socket.recv(pending.missing)
            if not data:
                raise ConnectionError("it was closed at the other end")
            pending.received += data
            if pending.missing == 0:
                self._check_token(pending)
        except BlockingIOError:
            pass
        except OSError:
            self._try_next(pending)

    def _send_token(self, pending: _Pending, peer: int) -> None:
        """Send the listener's token and this rank, unless the connection could not be opened."""
        if failure := pending.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(failure, "the connection failed")
        pending.socket.sendall(self.endpoints[peer][0] + _RANK.pack(self.rank))
        pending.token_sent = True
        self._poll.modify(pending.socket, select.POLLIN)

    def _check_token(self, pending: _Pending) -> None:
        """Keep the connection if the peer has sent this rank's token; reply to a peer that connected."""
        token, peer = bytes(pending.received[:_TOKEN]), pending.peer
        if not secrets.compare_digest(token, self.endpoints[self.rank][0]):
            raise ConnectionError("the token is wrong")
        if peer is None:
            (peer,) = _RANK.unpack(pending.received[_TOKEN:])
            if not self.rank < peer < len(self.endpoints):
                raise ConnectionError("no such rank is expected")
            pending.socket.sendall(self.endpoints[peer][0])
        if (earlier := self.found.get(peer)) is not None:  # the peer has closed that one
            earlier.close()
        self.found[peer] = pending.socket
        self._unregister(pending)

    def _close_late(self) -> None:
        now = time.monotonic()
        for pending in [each for each in self._pending.values() if each.deadline <= now]:
            self._try_next(pending)

    def _try_next(self, pending: _Pending) -> None:
        """Close a connection; if this rank opened it, try the next address of the peer."""
        self._close(pending)
        if pending.peer is not None:
            self._connect_to(pending.peer)

    def _close(self, pending: _Pending) -> None:
        self._unregister(pending)
        pending.socket.close()

    def _unregister(self, pending: _Pending) -> None:
        descriptor = pending.socket.fileno()
        self._poll.unregister(descriptor)
        del self._pending[descriptor]
