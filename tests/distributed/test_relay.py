"""Items of unequal length go round a ring, and no rank waits for ever."""

import time
from typing import Any

import pytest
import torch

import thinwire
from tests.distributed.connected import close, connect_all, on_all
from thinwire.core.buffers import Buffers
from thinwire.core.ops import LONGEST
from thinwire.worlds.tcp.relay import Relay


@pytest.mark.timeout(60)
@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("lengths", [(0,), (7,), (100_000,), (0, 300_000, 5)])
def test_a_relay_gathers_the_items_of_all_ranks(ranks: int, lengths: tuple[int, ...]) -> None:
    """Those of rank 1 are the longest, of rank 0 there is nothing."""
    given = [
        [
            torch.full((rank * length if rank < 2 else rank,), 7 * rank + at, dtype=torch.uint8)
            for at, length in enumerate(lengths)
        ]
        for rank in range(ranks)
    ]
    all_connections = connect_all(ranks)
    relays = [Relay(rank, all_connections[rank], 3, Buffers(), 20.0) for rank in range(ranks)]
    everyone = on_all(ranks, lambda rank: relays[rank].run(given[rank], LONGEST))
    close(all_connections)
    for found in everyone:
        assert [[item.tolist() for item in items] for items in found] == [[t.tolist() for t in row] for row in given]


@pytest.mark.timeout(60)
def test_a_relay_keeps_bytes_that_a_late_peer_does_not_receive() -> None:
    """More chunks wait to be forwarded than the kernel accepts at once."""
    given = [[torch.full((n,), rank, dtype=torch.uint8)] for rank, n in enumerate((40_000_000, 5, 0))]
    all_connections = connect_all(3)

    def body(rank: int) -> Any:
        time.sleep(0.5 if rank == 2 else 0)
        return Relay(rank, all_connections[rank], 1, Buffers(), 20.0).run(given[rank], LONGEST)

    for found in on_all(3, body):
        assert all(torch.equal(items[0], mine[0]) for items, mine in zip(found, given, strict=True))
    close(all_connections)


@pytest.mark.timeout(60)
def test_a_relay_of_another_exchange_is_refused() -> None:
    both = connect_all(2)

    def body(rank: int) -> None:
        relay = Relay(rank, both[rank], 3 + rank, Buffers(), 20.0)
        with pytest.raises(thinwire.WireError, match=f"rank {1 - rank} sent another message than the one that is due"):
            relay.run([torch.zeros(10, dtype=torch.uint8)], 10)

    on_all(2, body)
    close(both)


@pytest.mark.timeout(60)
def test_a_silent_peer_of_a_relay_is_named() -> None:
    both = connect_all(2)
    with pytest.raises(thinwire.WorldError, match=r"rank 1 did not answer for 0\.2 s"):
        Relay(0, both[0], 1, Buffers(), 0.2).run([torch.zeros(10, dtype=torch.uint8)], 10)
    close(both)
