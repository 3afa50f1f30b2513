"""Threads that act as ranks and connect over TCP, without a process group."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from thinwire.worlds.tcp.connections import Connection
from thinwire.worlds.tcp.handshake import connect


class ObjectGather:
    """Lets threads that act as ranks gather objects, as a process group would."""

    def __init__(self, ranks: int) -> None:
        self.objects: list[Any] = [None] * ranks
        self.barrier = threading.Barrier(ranks, timeout=30)

    def of(self, rank: int) -> Callable[[Any], list[Any]]:
        def gather(mine: Any) -> list[Any]:
            self.objects[rank] = mine
            self.barrier.wait()
            everyone = list(self.objects)
            self.barrier.wait()
            return everyone

        return gather


def on_all(ranks: int, body: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(ranks) as pool:
        return [future.result(timeout=60) for future in [pool.submit(body, rank) for rank in range(ranks)]]


def connect_all(ranks: int, publish: Callable[[int, Any], Any] = lambda rank, endpoint: endpoint) -> list[Any]:
    """The connections of every rank, over loopback; `publish` returns the endpoint that a rank publishes."""
    objects = ObjectGather(ranks)

    def body(rank: int) -> Any:
        gather = objects.of(rank)
        return connect(rank, ranks, lambda mine: gather(publish(rank, mine) if isinstance(mine, tuple) else mine))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MASTER_ADDR", "127.0.0.1")
        patch.delenv("GLOO_SOCKET_IFNAME", raising=False)
        return on_all(ranks, body)


def close(all_connections: list[dict[int, Connection]]) -> None:
    for connections in all_connections:
        for connection in connections.values():
            connection.close()
