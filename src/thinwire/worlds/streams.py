"""Connections of this rank's own to every other rank of a process group, for messages that follow each other closely.

Gloo sends a message when its receiver has said that it waits for it. Over these sockets, bytes leave when they are
there and wait in the receiver's kernel until they are wanted, so that neither side must wait for the other's thread to
run. The process group is what introduces the ranks to each other. Only this host's addresses that the group would use
are listened at, and only while the ranks connect; who connects must know what the group told its ranks.
"""

import array
import fcntl
import os
import secrets
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, TypeAlias

from thinwire.errors import WorldError

Gather: TypeAlias = Callable[[Any], list[Any]]  # what every rank says, by rank

CONNECTING = 10.0  # seconds in which the ranks must have found each other
_WAITING = 1 << 16  # bytes in the kernel that have not been sent yet, from which it takes no more
_TOGETHER = 64  # pieces of memory that the kernel is given at once; it refuses more than 1,024
_LONGEST_WAIT = 2**31 - 1  # milliseconds that can be waited for
_SPEAKING = 2.0  # seconds in which who calls must say who it is
_TOKEN = 16  # bytes
_RANK = struct.Struct("<I")
_ADDRESS_OF = 0x8915  # SIOCGIFADDR


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


def connected(rank: int, ranks: int, gather: Gather) -> dict[int, Stream] | None:
    """A stream to every other rank; None, on all ranks, if some of them cannot reach each other."""
    listeners = _listeners(own_addresses(), ranks)
    try:
        secret = secrets.token_bytes(_TOKEN)
        told = gather((secret, [listener.getsockname()[:2] for listener in listeners]))
        until = time.monotonic() + CONNECTING
        found: dict[int, socket.socket] = {}
        try:
            for peer in range(rank):
                found[peer] = _called(told[peer], secret, rank, until)
            while len(found) < ranks - 1:
                peer, connection = _answered(listeners, told, rank, until)
                found[peer] = connection
        except OSError:
            pass  # nobody uses what is there if anybody lacks something
        complete = all(gather(len(found) == ranks - 1))
        if not complete:
            for connection in found.values():
                connection.close()
            return None
        return {peer: Stream(connection, peer) for peer, connection in found.items()}
    finally:
        for listener in listeners:
            listener.close()


def _listeners(addresses: Sequence[str], ranks: int) -> list[socket.socket]:
    listeners = []
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            listeners.append(socket.create_server((address, 0), family=family, backlog=ranks))
        except OSError:
            continue  # an address that a name has, and this host has not
    return listeners


def _called(told: tuple[bytes, list[tuple[str, int]]], own: bytes, rank: int, until: float) -> socket.socket:
    """A connection to a peer, which proves by its answer that it is the one."""
    secret, addresses = told
    for untried, (address, port) in zip(range(len(addresses), 0, -1), addresses, strict=True):
        try:
            connection = socket.create_connection((address, port), timeout=_left(until) / untried)
            connection.settimeout(_left(until))
        except OSError:
            continue
        try:
            connection.sendall(secret + _RANK.pack(rank))
            if secrets.compare_digest(_read(connection, _TOKEN), own):
                return connection
        except OSError:
            pass
        connection.close()
    raise ConnectionError("no address of a peer answers")


def _answered(
    listeners: Sequence[socket.socket], told: Sequence[Any], rank: int, until: float
) -> tuple[int, socket.socket]:
    """The next peer that calls; others are sent away."""
    if not listeners:
        raise ConnectionError("this host has no address where peers could call")
    listening, ears = {listener.fileno(): listener for listener in listeners}, select.poll()
    for listener in listeners:
        ears.register(listener, select.POLLIN)
    while True:
        for number, _ in ears.poll(1000 * _left(until)):
            connection, _ = listening[number].accept()
            try:
                connection.settimeout(min(_SPEAKING, _left(until)))
                called = _read(connection, _TOKEN + _RANK.size)
                (peer,) = _RANK.unpack(called[_TOKEN:])
                if secrets.compare_digest(called[:_TOKEN], told[rank][0]) and rank < peer < len(told):
                    connection.sendall(told[peer][0])
                    return peer, connection
            except OSError:
                pass
            connection.close()


def _read(connection: socket.socket, count: int) -> bytes:
    read = b""
    while len(read) < count:
        more = connection.recv(count - len(read))
        if not more:
            raise ConnectionError("the connection ends early")
        read += more
    return read


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("peers took too long to connect")
    return left


def own_addresses() -> list[str]:
    """Where peers reach this host: at the interface that Gloo is told to use, or else where Gloo would look."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if interface:
        return [address for address in [_interface_address(interface)] if address]
    master = os.environ.get("MASTER_ADDR")
    found = [_address_towards(master) if master else None, _address_towards(socket.gethostname())]
    return list(dict.fromkeys(address for address in found if address)) or ["127.0.0.1"]


def _interface_address(name: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        request = array.array("b", struct.pack("256s", name.encode()[:15]))
        try:
            fcntl.ioctl(asked.fileno(), _ADDRESS_OF, request)
        except OSError:
            return None
        return socket.inet_ntoa(request[20:24].tobytes())


def _address_towards(host: str) -> str | None:
    """This host's address on the way to another; nothing is sent."""
    try:
        family, kind, _, _, there = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as asked:
            asked.connect(there)
            address: str = asked.getsockname()[0]
            return address
    except OSError:
        return None


class Streams:
    """Connections to all other ranks of a group, on which one journey follows the other."""

    def __init__(self, streams: dict[int, Stream], patience: float) -> None:
        """`patience`: seconds after which a peer that does not answer is an error."""
        self.streams, self.patience = streams, patience
        self.journeys = 0
        self.closed = False
        self._busy = threading.Lock()

    @classmethod
    def connect(cls, rank: int, ranks: int, gather: Gather, patience: float) -> "Streams | None":
        """None, on all ranks, if some of them cannot reach each other."""
        streams = connected(rank, ranks, gather)
        return None if streams is None else cls(streams, patience)

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
