"""How the ranks of a process group open a connection of their own to each other.

The process group introduces them: each rank publishes its addresses and a random token through it. A rank calls every
lower rank and listens for the higher ones. A caller sends the listener's token and its own rank; the listener answers
with the caller's token. One loop serves all connections at the same time and each has a deadline, so that a connection
that is silent or slow delays nobody. Ports are open only while the ranks connect.
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

from thinwire.worlds.addresses import own_addresses
from thinwire.worlds.streams import Stream

Gather: TypeAlias = Callable[[Any], list[Any]]  # what every rank says, by rank
Told: TypeAlias = tuple[bytes, list[tuple[str, int]]]  # a rank's token and addresses

CONNECTING = 10.0  # seconds in which the ranks must have found each other
_SPEAKING = 2.0  # seconds in which a caller must have said who it is
_CALLERS = 256  # that have not said who they are; when there are more, the oldest is closed
_QUEUE = 4096  # callers that the kernel keeps until they are accepted
_TOKEN = 16  # bytes
_RANK = struct.Struct("<I")


def connected(rank: int, ranks: int, gather: Gather) -> dict[int, Stream] | None:
    """A stream to every other rank; None, on all ranks, if some of them cannot reach each other."""
    listeners = _listeners(own_addresses())
    try:
        token = secrets.token_bytes(_TOKEN)
        told = gather((token, [listener.getsockname()[:2] for listener in listeners]))
        found = _Handshake(rank, told, listeners, time.monotonic() + CONNECTING).run()
        # nobody uses what is there if anybody lacks something
        if not all(gather(len(found) == ranks - 1)):
            for connection in found.values():
                connection.close()
            return None
        return {peer: Stream(connection, peer) for peer, connection in found.items()}
    finally:
        for listener in listeners:
            listener.close()


def _listeners(addresses: Sequence[str]) -> list[socket.socket]:
    listeners = []
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            listeners.append(socket.create_server((address, 0), family=family, backlog=_QUEUE))
        except OSError:
            continue  # an address that a name has, and this host has not
    return listeners


@dataclass(eq=False)
class _Pending:
    """A connection whose other end has not proved who it is."""

    connection: socket.socket
    deadline: float
    peer: int | None = None  # the rank that was called; None: this one is a caller
    introduced: bool = False  # a call on which this rank has said who it is
    heard: bytearray = field(default_factory=bytearray)

    @property
    def missing(self) -> int:
        """Bytes that the other end has still to send."""
        return _TOKEN + (_RANK.size if self.peer is None else 0) - len(self.heard)


class _Handshake:
    """One rank's part: callers and calls in one loop."""

    def __init__(self, rank: int, told: Sequence[Told], listeners: Sequence[socket.socket], until: float) -> None:
        self.rank, self.told, self.until = rank, told, until
        self.found: dict[int, socket.socket] = {}
        self._pending: dict[int, _Pending] = {}  # by descriptor, in order of age
        self._untried = {peer: list(told[peer][1]) for peer in range(rank)}  # addresses of ranks to call
        self._listening = {listener.fileno(): listener for listener in listeners}
        self._poll = select.poll()
        for listener in listeners:
            listener.setblocking(False)
            self._poll.register(listener, select.POLLIN)

    def run(self) -> dict[int, socket.socket]:
        """Connections by rank, all of them or as many as were found."""
        try:
            for peer in range(self.rank):
                self._call(peer)
            while len(self.found) < len(self.told) - 1 and (self._listening or self._pending):
                now = time.monotonic()
                if now >= self.until:
                    break
                soonest = min([self.until, *(pending.deadline for pending in self._pending.values())])
                for descriptor, _ in self._poll.poll(1000 * max(soonest - now, 0) + 1):
                    if descriptor in self._listening:
                        self._accept(self._listening[descriptor])
                    elif descriptor in self._pending:
                        self._advance(self._pending[descriptor])
                self._end_late()
        except ConnectionError:
            pass  # a peer that cannot be called: no need to wait for the others
        finally:
            for pending in list(self._pending.values()):
                self._close(pending)
        return self.found

    def _call(self, peer: int) -> None:
        """Begin to connect to the next address of a peer; each has its share of the time that is left."""
        while self._untried[peer]:
            left = (self.until - time.monotonic()) / len(self._untried[peer])
            address, port = self._untried[peer].pop(0)
            connection = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
            connection.setblocking(False)
            try:
                refused = connection.connect_ex((address, port))
            except OSError as reason:  # not an address
                refused = reason.errno or errno.EINVAL
            if refused in (0, errno.EINPROGRESS):
                self._watch(_Pending(connection, time.monotonic() + left, peer), select.POLLOUT)
                return
            connection.close()
        raise ConnectionError(f"no address of rank {peer} answers")

    def _accept(self, listener: socket.socket) -> None:
        callers = [pending for pending in self._pending.values() if pending.peer is None]
        if len(callers) >= _CALLERS:
            self._close(callers[0])
        try:
            connection, _ = listener.accept()
        except OSError as reason:
            if reason.errno in (errno.EMFILE, errno.ENFILE) and callers:
                self._close(callers[0])
            return
        connection.setblocking(False)
        self._watch(_Pending(connection, time.monotonic() + _SPEAKING), select.POLLIN)

    def _watch(self, pending: _Pending, events: int) -> None:
        self._pending[pending.connection.fileno()] = pending
        self._poll.register(pending.connection, events)

    def _advance(self, pending: _Pending) -> None:
        """Go on with a connection on which something has happened."""
        try:
            if pending.peer is not None and not pending.introduced:
                self._introduce(pending, pending.peer)
                return
            came = pending.connection.recv(pending.missing)
            if not came:
                raise ConnectionError("it was closed at the other end")
            pending.heard += came
            if pending.missing == 0:
                self._decide(pending)
        except BlockingIOError:
            pass
        except OSError:
            self._give_up(pending)

    def _introduce(self, pending: _Pending, peer: int) -> None:
        """A call has been taken, or has failed: say who calls."""
        if failure := pending.connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(failure, "the call failed")
        pending.connection.sendall(self.told[peer][0] + _RANK.pack(self.rank))
        pending.introduced = True
        self._poll.modify(pending.connection, select.POLLIN)

    def _decide(self, pending: _Pending) -> None:
        """The other end has said all it had to say: keep the connection if it is right."""
        token, peer = bytes(pending.heard[:_TOKEN]), pending.peer
        if not secrets.compare_digest(token, self.told[self.rank][0]):
            raise ConnectionError("this is somebody else")
        if peer is None:
            (peer,) = _RANK.unpack(pending.heard[_TOKEN:])
            if not self.rank < peer < len(self.told):
                raise ConnectionError("no such rank is expected")
            pending.connection.sendall(self.told[peer][0])
        if (earlier := self.found.get(peer)) is not None:  # the peer gave that one up
            earlier.close()
        self.found[peer] = pending.connection
        self._forget(pending)

    def _end_late(self) -> None:
        now = time.monotonic()
        for pending in [each for each in self._pending.values() if each.deadline <= now]:
            self._give_up(pending)

    def _give_up(self, pending: _Pending) -> None:
        self._close(pending)
        if pending.peer is not None:
            self._call(pending.peer)

    def _close(self, pending: _Pending) -> None:
        self._forget(pending)
        pending.connection.close()

    def _forget(self, pending: _Pending) -> None:
        descriptor = pending.connection.fileno()
        self._poll.unregister(descriptor)
        del self._pending[descriptor]
