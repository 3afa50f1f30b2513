"""Which ranks are lost: when an exchange fails, every rank finds out which peer has ended, is stopped, or failed first.

A backend's error contains an address at most, and only ranks that exchanged something with the lost one get it before
their timeout. So each two ranks have a connection that carries no data. A thread replies to pings on it while other
threads wait for peers. It records which connections end, and which peers report a failure of their own.
"""

import os
import select
import socket
import struct
import threading
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from thinwire.worlds.tcp.connections import Connection

_PING, _PONG, _FAILED = b"\x01", b"\x02", b"\x03"  # the last one is followed by a length and a text
_LENGTH = struct.Struct("<H")
_LONGEST_TEXT = 300  # bytes
_PONG_TIMEOUT = 5.0  # seconds in which a rank that works must reply
_RECENT = 60.0  # seconds for which a peer's failure explains those of others


@dataclass(eq=False)
class _Peer:
    """The state of one other rank; times are those of the monotonic clock."""

    rank: int
    socket: socket.socket
    received: bytearray = field(default_factory=bytearray)
    pinged: float = 0.0
    replied: float = 0.0
    lost: float | None = None  # when its connection ended
    failed: float | None = None  # when it reported a failure
    failure: str = ""

    def failed_recently(self, window: float) -> bool:
        """Whether its own failure explains that it does not take part."""
        return self.failed is not None and (self.lost or time.monotonic()) - self.failed < window

    def unknown(self, window: float) -> bool:
        return self.replied < self.pinged and self.lost is None and not self.failed_recently(window)


class _Monitor:
    """The thread and its data. It has no reference to the presence, so that it does not keep it alive."""

    def __init__(self, connections: Mapping[int, Connection]) -> None:
        self.peers = {each.socket.fileno(): _Peer(rank, each.socket) for rank, each in connections.items()}
        self.changed = threading.Condition()
        self.process = os.getpid()
        self._sending = threading.Lock()
        self._wake, self._woken = socket.socketpair()
        threading.Thread(target=self._run, daemon=True, name="thinwire presence").start()

    def send(self, peer: _Peer, message: bytes) -> None:
        """Send without waiting: a peer that accepts no more bytes does not reply either."""
        with self._sending, suppress(OSError):
            peer.socket.send(message)

    def stop(self) -> None:
        """Let the thread close all sockets, unless this is a forked process: the sockets are its parent's."""
        if os.getpid() == self.process:
            with suppress(OSError):
                self._wake.send(b"x")

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        for descriptor in self.peers:
            poll.register(descriptor, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._woken.fileno():
                    for each in (self._wake, self._woken, *(peer.socket for peer in self.peers.values())):
                        each.close()
                    return
                if not self._receive(self.peers[descriptor]):
                    poll.unregister(descriptor)

    def _receive(self, peer: _Peer) -> bool:
        """Receive what has arrived; False: the connection has ended."""
        try:
            data = peer.socket.recv(4096)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        with self.changed:
            peer.received += data
            fine = bool(data) and self._parse(peer)
            if not fine:
                peer.lost = time.monotonic()
            self.changed.notify_all()
        return fine

    def _parse(self, peer: _Peer) -> bool:
        """Handle all complete messages; False: these bytes are no message."""
        while peer.received:
            kind, size = bytes(peer.received[:1]), 1
            if kind == _FAILED:
                start = 1 + _LENGTH.size
                if len(peer.received) < start:
                    return True
                size = start + _LENGTH.unpack(peer.received[1:start])[0]
                if len(peer.received) < size:
                    return True
                peer.failed, peer.failure = time.monotonic(), peer.received[start:size].decode(errors="replace")
            elif kind == _PING:
                self.send(peer, _PONG)
            elif kind == _PONG:
                peer.replied = time.monotonic()
            else:
                return False
            del peer.received[:size]
        return True


class Presence:
    """This rank's connections that carry no data, one to each other rank of a group."""

    def __init__(self, connections: Mapping[int, Connection]) -> None:
        self._monitor = _Monitor(connections)
        weakref.finalize(self, self._monitor.stop)

    def tell_failure(self, reason: BaseException) -> None:
        """Send all peers the reason why this rank takes no further part."""
        lines = str(reason).splitlines() or [""]
        text = f"{type(reason).__name__}: {lines[0]}".encode()[:_LONGEST_TEXT]
        for peer in self._monitor.peers.values():
            self._monitor.send(peer, _FAILED + _LENGTH.pack(len(text)) + text)

    def explain(self, timeout: float) -> str:
        """Ping all peers, wait for their replies, and say which one is lost, does not reply, or has failed.

        `timeout`: seconds after which an exchange of these ranks fails.
        """
        monitor, window = self._monitor, 2 * timeout + _RECENT
        peers = sorted(monitor.peers.values(), key=lambda peer: peer.rank)
        with monitor.changed:
            for peer in peers:
                peer.pinged = time.monotonic()
        for peer in peers:
            monitor.send(peer, _PING)
        with monitor.changed:
            wait = min(_PONG_TIMEOUT, timeout)
            monitor.changed.wait_for(lambda: not any(peer.unknown(window) for peer in peers), wait)
            lost = [peer for peer in peers if peer.lost is not None and not peer.failed_recently(window)]
            silent = [peer.rank for peer in peers if peer.unknown(window)]
            failed = [peer for peer in peers if peer.failed_recently(window)]
        causes = []
        if lost:
            order = [peer.rank for peer in sorted(lost, key=lambda peer: peer.lost or 0.0)]  # the first is the cause
            causes.append(f"rank {_listed(order)} is gone: its process ended, or the host cannot be reached")
        if silent:
            causes.append(f"rank {_listed(silent)} does not answer: it is stopped, or the host cannot be reached")
        if failed and not causes:
            first = min(failed, key=lambda peer: peer.failed or 0.0)
            age = time.monotonic() - (first.failed or 0.0)
            causes.append(f"rank {first.rank} failed {age:.1f} s before ({first.failure})")
        return "; ".join(causes) or "all other ranks answer; one of them may be late, or does not take part"


def _listed(ranks: list[int]) -> str:
    return ", then ".join(map(str, ranks))
