"""Messages of an exchange keep their order; errors name a peer that is lost, silent, or sends another message."""

import os
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import thinwire
from tests.distributed.connected import close, connect_all, on_all
from tests.distributed.processes import run_ranks
from thinwire.core.buffers import Buffers
from thinwire.core.ops import LONGEST, Hop, PipelinedExchange, Traffic
from thinwire.core.reducers import sharded
from thinwire.worlds.tcp import exchange
from thinwire.worlds.tcp.connections import Connection, Connections
from thinwire.worlds.tcp.exchange import Exchange, frame_order, split_into_frames
from thinwire.worlds.tcp.relay import Relay


class Numbers:
    """An item that sends bytes made of rank, hop and the message of the hop that this one needs."""

    def __init__(self, rank: int, size: int, hops: list[Hop], exact: bool) -> None:
        self.rank, self.length, self.hops = rank, size, hops
        self.size, self.expected_size, self.longest = size if exact else None, size, LONGEST
        self.traffic = Traffic()
        self.received: dict[int, Tensor] = {}
        self.prepared: dict[int, int] = {}
        self.sent_hops: list[int] = []

    def prepare(self, hop: int) -> bool:
        self.prepared[hop] = self.prepared.get(hop, 0) + 1
        return self.prepared[hop] > 2

    def next_message(self, hop: int) -> Tensor:
        needs = self.hops[hop].needs
        seed = 0 if needs < 0 else int(self.received[needs].sum()) if self.length else 0
        length = self.length + (0 if self.size is not None else 10 * self.rank + hop)
        return torch.full((length,), (seed + 16 * self.rank + hop) % 251, dtype=torch.uint8)

    def on_sent(self, hop: int) -> None:
        self.sent_hops.append(hop)

    def on_message(self, hop: int, message: Tensor) -> None:
        self.received[hop] = message.clone()


def exchanged(all_connections: list[dict[int, Connection]], sizes: list[int], exact: bool) -> list[list[Numbers]]:
    ranks = len(all_connections)

    def body(rank: int) -> list[Numbers]:
        hops = list(sharded.hops_of(rank, ranks))
        items = [Numbers(rank, size, hops, exact) for size in sizes]
        Exchange(PipelinedExchange(hops, items, torch.device("cpu")), all_connections[rank], 1, Buffers(), 20.0).run()
        return items

    return on_all(ranks, body)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("exact", [True, False])
def test_everyone_gets_what_was_meant_for_it(ranks: int, exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_FRAME_BYTES", 1000)
    sizes = [0, 5, 3000, 70_000, 1, 999, 1001, 400_000]
    all_connections = connect_all(ranks)
    everyone = exchanged(all_connections, sizes, exact)
    close(all_connections)
    for rank, items in enumerate(everyone):
        hops = list(sharded.hops_of(rank, ranks))
        for at, item in enumerate(items):
            assert item.sent_hops == list(range(len(hops)))
            for number, hop in enumerate(hops):
                sender = everyone[hop.source][at]
                assert torch.equal(item.received[number], sender.next_message(number))


@pytest.mark.timeout(60)
def test_idle_work_is_done_where_ranks_would_wait() -> None:
    all_connections = connect_all(2)
    done: list[list[int]] = [[], []]

    def body(rank: int) -> None:
        hops = list(sharded.hops_of(rank, 2))
        left = list(range(5))

        def work() -> bool:
            if left:
                done[rank].append(left.pop())
            return bool(left)

        if rank == 1:
            time.sleep(0.2)  # rank 0 has time
        items = [Numbers(rank, 1000, hops, True)]
        op = PipelinedExchange(hops, items, torch.device("cpu"), [work])
        Exchange(op, all_connections[rank], 1, Buffers(), 20.0).run()

    on_all(2, body)
    close(all_connections)
    assert done[0] == [4, 3, 2, 1, 0]


class Slow(Numbers):
    """Rank 1 has sent all its messages long before it receives the last one, which no socket can hold."""

    def on_sent(self, hop: int) -> None:
        if self.rank == 1 and hop == 1:
            time.sleep(0.3)

    def next_message(self, hop: int) -> Tensor:
        return torch.full((1 if self.rank else 30_000_000,), hop, dtype=torch.uint8)


@pytest.mark.timeout(60)
def test_an_exchange_ends_when_its_last_message_is_sent() -> None:
    both = connect_all(2)

    def body(rank: int) -> Slow:
        hops = list(sharded.hops_of(rank, 2))
        item = Slow(rank, 0, hops, exact=False)
        Exchange(PipelinedExchange(hops, [item], torch.device("cpu")), both[rank], 1, Buffers(), 5.0).run()
        return item

    first, second = on_all(2, body)
    close(both)
    assert [message.tolist() for message in first.received.values()] == [[0], [1]]
    assert all(message.eq(hop).all() and len(message) == 30_000_000 for hop, message in second.received.items())


@given(st.integers(2, 6), st.integers(1, 9))
def test_the_order_is_the_same_at_both_ends_and_nothing_waits_for_itself(ranks: int, frames: int) -> None:
    for rank in range(ranks):
        hops = sharded.hops_of(rank, ranks)
        order = frame_order(hops, frames)
        assert sorted(order) == [(hop, number) for hop in range(len(hops)) for number in range(frames)]
        position = {frame: at for at, frame in enumerate(order)}
        for hop, number in order:
            if hops[hop].needs >= 0:
                assert position[(hops[hop].needs, number)] < position[(hop, number)]  # type: ignore[index]
        for peer in range(ranks):
            theirs = frame_order(sharded.hops_of(peer, ranks), frames)
            sent = [frame for frame in order if hops[frame.hop].to == peer]
            assert sent == [f for f in theirs if sharded.hops_of(peer, ranks)[f.hop].source == rank]


@given(st.lists(st.integers(0, 4 * exchange._FRAME_BYTES), min_size=1, max_size=60))
def test_frames_are_all_items_in_order(sizes: list[int]) -> None:
    frames = split_into_frames(sizes)
    assert [at for frame in frames for at in frame] == list(range(len(sizes)))
    filled = [sum(sizes[at] for at in frame) for frame in frames]
    assert len(frames) <= exchange._MAX_FRAMES
    assert len(frames) == 1 or min(filled) >= exchange._FRAME_BYTES


@pytest.mark.timeout(60)
@pytest.mark.parametrize("exact", [True, False])
def test_more_items_than_the_kernel_takes_at_once(exact: bool) -> None:
    all_connections = connect_all(2)
    first, second = exchanged(all_connections, [3] * 3000, exact)
    found = on_all(
        2, lambda rank: Relay(rank, all_connections[rank], 1, Buffers(), 20.0).run([torch.ones(2).byte()] * 3000, 2)
    )
    close(all_connections)
    assert all(
        torch.equal(mine.received[1], theirs.next_message(1)) for mine, theirs in zip(first, second, strict=True)
    )
    assert [len(items) for items in found[0]] == [3000, 3000]


def exchange_of(
    rank: int, connections: dict[int, Connection], serial: int = 1, timeout: float = 20.0, size: int = 100
) -> Exchange:
    hops = list(sharded.hops_of(rank, len(connections) + 1))
    op = PipelinedExchange(hops, [Numbers(rank, size, hops, exact=True)], torch.device("cpu"))
    return Exchange(op, connections, serial, Buffers(), timeout)


@pytest.mark.timeout(60)
def test_a_peer_that_left_is_named() -> None:
    first, second = connect_all(2)
    second[0].close()
    with pytest.raises(thinwire.WorldError, match="the connection to rank 1 is lost"):
        exchange_of(0, first).run()
    close([first])


@pytest.mark.timeout(60)
def test_a_silent_peer_is_named_after_a_while() -> None:
    both = connect_all(2)
    with pytest.raises(thinwire.WorldError, match=r"rank 1 did not answer for 0\.2 s"):
        exchange_of(0, both[0], timeout=0.2).run()
    close(both)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("serial", "size"), [(2, 100), (1, 101)])
def test_a_message_that_is_not_due_is_refused(serial: int, size: int) -> None:
    both = connect_all(2)

    def body(rank: int) -> None:
        wrong = exchange_of(rank, both[rank], serial=serial if rank else 1, size=size if rank else 100)
        with pytest.raises(thinwire.WireError, match=f"rank {1 - rank} sent another message than the one that is due"):
            wrong.run()

    on_all(2, body)
    close(both)


@pytest.mark.timeout(60)
def test_after_a_failure_all_connections_end_and_none_is_used_again() -> None:
    first, second = connect_all(2)
    mine = Connections(first, 20.0)
    with pytest.raises(ZeroDivisionError), mine.exchange():
        raise ZeroDivisionError
    with pytest.raises(thinwire.WorldError, match="the connection to rank 0 is lost"):
        exchange_of(1, second).run()
    with pytest.raises(thinwire.WorldError, match="because an exchange failed before"), mine.exchange():
        pass
    close([second])


@pytest.mark.timeout(60)
def test_peers_learn_of_a_failure_even_if_a_fork_holds_the_connection() -> None:
    first, second = connect_all(2)
    held = first[1].socket.dup()  # as a forked worker has it
    with pytest.raises(ZeroDivisionError), Connections(first, 20.0).exchange():
        raise ZeroDivisionError
    with pytest.raises(thinwire.WorldError, match="the connection to rank 0 is lost"):
        exchange_of(1, second).run()
    held.close()
    close([second])


def test_two_threads_on_one_group_are_refused() -> None:
    connections = Connections({}, 1.0)
    with (
        connections.exchange(),
        pytest.raises(thinwire.WorldError, match="two threads average on one process group"),
        connections.exchange(),
    ):
        pass
    with connections.exchange() as number:
        assert number == 2


def leaves_in_the_middle(rank: int, ranks: int) -> str:
    sharded.LONG = 1
    x = torch.randn(4000, generator=torch.Generator().manual_seed(rank))
    thinwire.average(x, "qsgd", reduction="sharded")
    if rank == ranks - 1:
        os._exit(1)
    began = time.monotonic()
    with pytest.raises(thinwire.WorldError) as failure:
        thinwire.average(x, "qsgd", reduction="sharded", step=1)
    assert time.monotonic() - began < 20
    return str(failure.value)


@pytest.mark.distributed
@pytest.mark.timeout(90)
def test_a_rank_that_dies_is_an_error_with_a_rank_in_it() -> None:
    for rank, message in enumerate(run_ranks(3, leaves_in_the_middle, seconds=60, dying=1)):
        assert message.startswith(f"rank {rank} of 3: PipelinedExchange failed")
        assert "the connection to rank" in message
