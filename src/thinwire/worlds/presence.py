"""Which ranks are there: when an exchange fails, every rank finds out who is lost, stopped, or failed first.

Each two ranks have a connection that carries no data. A thread answers on it while other threads wait for peers, notes
connections that end, and notes what peers say about their own failures. A backend's error has only an address in it,
and only ranks that happened to exchange something with the lost one get it before their timeout.
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

from thinwire.worlds.streams import Stream

_ASK, _ANSWER, _FAILED = b"\x01", b"\x02", b"\x03"  # the last one is followed by a length and a text
_LENGTH = struct.Struct("<H")
_LONGEST_TEXT = 300  # bytes
_ANSWERING = 5.0  # seconds in which a rank that works must answer
_LATELY = 60.0  # seconds for which a peer's failure explains those of others


@dataclass(eq=False)
class _Peer:
    """What is known of one other rank; times are those of the monotonic clock."""

    rank: int
    connection: socket.socket
    heard: bytearray = field(default_factory=bytearray)
    asked: float = 0.0
    answered: float = 0.0
    lost: float | None = None  # when its connection ended
    failed: float | None = None  # when it said that it had failed
    failure: str = ""

    def failed_lately(self, window: float) -> bool:
        """Whether its own failure explains that it does not take part."""
        return self.failed is not None and (self.lost or time.monotonic()) - self.failed < window

    def unknown(self, window: float) -> bool:
        return self.answered < self.asked and self.lost is None and not self.failed_lately(window)


class _Watch:
    """The thread, and all that it uses: it does not keep the presence alive."""

    def __init__(self, streams: Mapping[int, Stream]) -> None:
        self.peers = {stream.connection.fileno(): _Peer(rank, stream.connection) for rank, stream in streams.items()}
        self.changed = threading.Condition()
        self.process = os.getpid()
        self._sending = threading.Lock()
        self._wakes, self._woken = socket.socketpair()
        threading.Thread(target=self._run, daemon=True, name="thinwire presence").start()

    def send(self, peer: _Peer, words: bytes) -> None:
        """Nothing is worth waiting for: a peer that takes no more bytes does not answer either."""
        with self._sending, suppress(OSError):
            peer.connection.send(words)

    def end(self) -> None:
        """Let the thread close all; a forked process has the connections too, and must leave them alone."""
        if os.getpid() == self.process:
            with suppress(OSError):
                self._wakes.send(b"x")

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        for descriptor in self.peers:
            poll.register(descriptor, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._woken.fileno():
                    for connection in (self._wakes, self._woken, *(peer.connection for peer in self.peers.values())):
                        connection.close()
                    return
                if not self._hear(self.peers[descriptor]):
                    poll.unregister(descriptor)

    def _hear(self, peer: _Peer) -> bool:
        """Take what has come; False: the connection has ended."""
        try:
            came = peer.connection.recv(4096)
        except BlockingIOError:
            return True
        except OSError:
            came = b""
        with self.changed:
            peer.heard += came
            fine = bool(came) and self._understand(peer)
            if not fine:
                peer.lost = time.monotonic()
            self.changed.notify_all()
        return fine

    def _understand(self, peer: _Peer) -> bool:
        """Take whole words off what was heard; False: this is not a peer's language."""
        while peer.heard:
            kind, size = bytes(peer.heard[:1]), 1
            if kind == _FAILED:
                start = 1 + _LENGTH.size
                if len(peer.heard) < start:
                    return True
                size = start + _LENGTH.unpack(peer.heard[1:start])[0]
                if len(peer.heard) < size:
                    return True
                peer.failed, peer.failure = time.monotonic(), peer.heard[start:size].decode(errors="replace")
            elif kind == _ASK:
                self.send(peer, _ANSWER)
            elif kind == _ANSWER:
                peer.answered = time.monotonic()
            else:
                return False
            del peer.heard[:size]
        return True


class Presence:
    """This rank's connections that carry no data, one to each other rank of a group."""

    def __init__(self, streams: Mapping[int, Stream]) -> None:
        self._watch = _Watch(streams)
        weakref.finalize(self, self._watch.end)

    def tell_failure(self, reason: BaseException) -> None:
        """Tell all peers that this rank has failed, so that they know why it no longer takes part."""
        lines = str(reason).splitlines() or [""]
        text = f"{type(reason).__name__}: {lines[0]}".encode()[:_LONGEST_TEXT]
        for peer in self._watch.peers.values():
            self._watch.send(peer, _FAILED + _LENGTH.pack(len(text)) + text)

    def explain(self, timeout: float) -> str:
        """Ask all peers, wait for their answers, and say who is lost, does not answer, or has failed.

        `timeout`: seconds after which an exchange of these ranks fails.
        """
        watch, window = self._watch, 2 * timeout + _LATELY
        peers = sorted(watch.peers.values(), key=lambda peer: peer.rank)
        with watch.changed:
            for peer in peers:
                peer.asked = time.monotonic()
        for peer in peers:
            watch.send(peer, _ASK)
        with watch.changed:
            watch.changed.wait_for(lambda: not any(peer.unknown(window) for peer in peers), min(_ANSWERING, timeout))
            gone = [peer for peer in peers if peer.lost is not None and not peer.failed_lately(window)]
            silent = [peer.rank for peer in peers if peer.unknown(window)]
            failed = [peer for peer in peers if peer.failed_lately(window)]
        said = []
        if gone:
            order = [peer.rank for peer in sorted(gone, key=lambda peer: peer.lost or 0.0)]  # the first is the cause
            said.append(f"rank {_listed(order)} is gone: its process ended, or the host cannot be reached")
        if silent:
            said.append(f"rank {_listed(silent)} does not answer: it is stopped, or the host cannot be reached")
        if failed and not said:
            first = min(failed, key=lambda peer: peer.failed or 0.0)
            age = time.monotonic() - (first.failed or 0.0)
            said.append(f"rank {first.rank} failed {age:.1f} s before ({first.failure})")
        return "; ".join(said) or "all other ranks answer; one of them may be late, or does not take part"


def _listed(ranks: list[int]) -> str:
    return ", then ".join(map(str, ranks))
