"""Ranks connect to each other, at any of their addresses, and to nobody else; if they cannot, the backend sends."""

import os
import resource
import socket
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch

import thinwire
from tests.distributed.connected import close, connect_all
from tests.distributed.processes import run_ranks
from thinwire.core.reducers import sharded
from thinwire.worlds.tcp import handshake
from thinwire.worlds.tcp.addresses import own_addresses


@pytest.mark.timeout(60)
def test_connections_of_strangers_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sends a wrong token, and one sends nothing and closes."""
    listen = handshake._listeners

    def listeners(addresses: list[str]) -> list[socket.socket]:
        made = listen(addresses)
        for words in (b"x" * 20, b""):
            with socket.create_connection(made[0].getsockname()) as stranger:
                stranger.sendall(words)
        return made

    monkeypatch.setattr(handshake, "_listeners", listeners)
    all_connections = connect_all(3)
    assert [sorted(mine) for mine in all_connections] == [[1, 2], [0, 2], [0, 1]]
    close(all_connections)


def with_strangers(monkeypatch: pytest.MonkeyPatch, call: Callable[[socket.socket], None]) -> None:
    """Let `call` connect to the first listener of each rank before any rank does."""
    listen = handshake._listeners

    def listeners(addresses: list[str]) -> list[socket.socket]:
        made = listen(addresses)
        call(made[0])
        return made

    monkeypatch.setattr(handshake, "_listeners", listeners)


@pytest.mark.timeout(60)
def test_a_stranger_that_sends_a_byte_now_and_then_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take 34 seconds to send a token; the ranks have 10."""
    strangers: list[socket.socket] = []
    ended = threading.Event()

    def drip() -> None:
        while not ended.wait(1.7):
            for stranger in strangers:
                with suppress(OSError):
                    stranger.sendall(b"x")

    with_strangers(monkeypatch, lambda listener: strangers.append(socket.create_connection(listener.getsockname())))
    dripping = threading.Thread(target=drip, daemon=True)
    dripping.start()
    all_connections = connect_all(2)
    ended.set()
    dripping.join(timeout=10)
    for stranger in strangers:
        stranger.close()
    assert [sorted(mine) for mine in all_connections] == [[1], [0]]
    close(all_connections)


@pytest.mark.timeout(60)
def test_a_thousand_silent_strangers_delay_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them is ever closed for being late, so that each would use all of the ranks' time."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("this machine allows no process so many connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    monkeypatch.setattr(handshake, "_TOKEN_TIMEOUT", 60.0)
    strangers: list[socket.socket] = []

    def call(listener: socket.socket) -> None:
        if not strangers:
            strangers.extend(socket.create_connection(listener.getsockname(), timeout=20) for _ in range(1000))

    with_strangers(monkeypatch, call)
    all_connections = connect_all(2)
    for stranger in strangers:
        stranger.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [sorted(mine) for mine in all_connections] == [[1], [0]]
    close(all_connections)


@pytest.mark.timeout(60)
def test_if_one_cannot_be_reached_nobody_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "CONNECT_TIMEOUT", 1.0)
    hidden = connect_all(3, lambda rank, endpoint: (endpoint[0], []) if rank == 1 else endpoint)
    assert hidden == [None, None, None]


@pytest.mark.timeout(60)
def test_a_connection_to_somebody_else_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port where another program listens: it does not know the token."""
    monkeypatch.setattr(handshake, "CONNECT_TIMEOUT", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.sendall(b"y" * 16)
                connection.recv(64)

        talker = threading.Thread(target=answer, daemon=True)
        talker.start()

        found = connect_all(2, lambda rank, mine: (mine[0], [("127.0.0.1", port)]) if rank == 0 else mine)
        assert found == [None, None]
        talker.join(timeout=10)


@pytest.mark.timeout(60)
def test_ranks_connect_at_any_of_several_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first address leads nowhere."""
    monkeypatch.setattr(handshake, "own_addresses", lambda: ["127.0.0.2", "127.0.0.1"])
    began = time.monotonic()
    all_connections = connect_all(3, lambda rank, endpoint: (endpoint[0], [("127.0.0.3", 9), *endpoint[1][1:]]))
    assert time.monotonic() - began < handshake.CONNECT_TIMEOUT / 2
    assert [sorted(mine) for mine in all_connections] == [[1, 2], [0, 2], [0, 1]]
    close(all_connections)


def test_addresses_are_those_of_the_interface_that_gloo_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert own_addresses()[0] == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert own_addresses() == ["127.0.0.1"]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")
    assert own_addresses() == []


def averages_cut_off(rank: int, ranks: int) -> tuple[Any, int]:
    """An average where no rank finds an address of its own."""
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    handshake.own_addresses, handshake.CONNECT_TIMEOUT, sharded.LONG = list, 1.0, 1  # type: ignore[attr-defined]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mean = thinwire.average(torch.full((4000,), float(rank)), "qsgd(bits=8)", reduction="sharded")
    warned = [str(warning.message) for warning in caught if "connections of their own" in str(warning.message)]
    return mean.numpy(), len(warned)


@pytest.mark.distributed
@pytest.mark.timeout(90)
def test_without_connections_the_backend_sends_and_the_first_rank_warns() -> None:
    results = run_ranks(2, averages_cut_off, seconds=80)
    assert [count for _, count in results] == [1, 0]
    assert all(abs(mean - 0.5).max() < 0.01 for mean, _ in results)
