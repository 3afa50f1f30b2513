"""Bytes that the kernel counted are those that were written."""

import socket
from collections.abc import Iterator

import pytest

from thinwire_lab.compare.traffic import Traffic, written_bytes

pytestmark = pytest.mark.skipif(written_bytes() is None, reason="this kernel keeps no accounts of connections")


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        with receiver:
            yield sender, receiver


def test_every_byte_counts_once(connection: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = connection
    traffic = Traffic()
    for size in (1, 1000, 50_000):
        before = traffic.total()
        assert before is not None
        sender.sendall(bytes(size))
        received = 0
        while received < size:
            received += len(receiver.recv(1 << 16))
        after = traffic.total()
        assert after is not None
        assert after - before == size


def test_bytes_under_way_count_as_well(connection: tuple[socket.socket, socket.socket]) -> None:
    sender, _ = connection
    traffic = Traffic()
    sender.sendall(bytes(10_000))  # nobody reads them
    assert traffic.total() == 10_000


def test_a_closed_connection_takes_nothing_back(connection: tuple[socket.socket, socket.socket]) -> None:
    sender, _ = connection
    traffic = Traffic()
    sender.sendall(bytes(100))
    assert traffic.total() == 100
    sender.close()
    assert traffic.total() == 100
