"""Threads that stand for ranks and meet over streams, without a process group."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from thinwire.worlds.handshake import connected
from thinwire.worlds.streams import Stream


class Meeting:
    """Lets threads that stand for ranks tell each other things, as a process group would."""

    def __init__(self, ranks: int) -> None:
        self.said: list[Any] = [None] * ranks
        self.barrier = threading.Barrier(ranks, timeout=30)

    def gather(self, rank: int) -> Callable[[Any], list[Any]]:
        def told(what: Any) -> list[Any]:
            self.said[rank] = what
            self.barrier.wait()
            everyone = list(self.said)
            self.barrier.wait()
            return everyone

        return told


def on_all(ranks: int, body: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(ranks) as pool:
        return [future.result(timeout=60) for future in [pool.submit(body, rank) for rank in range(ranks)]]


def meet(ranks: int, say: Callable[[int, Any], Any] = lambda rank, what: what) -> list[Any]:
    """The streams of every rank, at home; `say` is what a rank tells the others instead of the truth."""
    meeting = Meeting(ranks)

    def body(rank: int) -> Any:
        told = meeting.gather(rank)
        return connected(rank, ranks, lambda what: told(say(rank, what) if isinstance(what, tuple) else what))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MASTER_ADDR", "127.0.0.1")
        patch.delenv("GLOO_SOCKET_IFNAME", raising=False)
        return on_all(ranks, body)


def close(all_streams: list[dict[int, Stream]]) -> None:
    for mine in all_streams:
        for stream in mine.values():
            stream.close()
