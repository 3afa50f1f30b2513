"""Messages of a journey keep their order; who is gone, silent or confused is named."""

import os
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import thinwire
from tests.distributed.meeting import close, meet, on_all
from tests.distributed.processes import run_ranks
from thinwire.core.buffers import Buffers
from thinwire.core.ops import LONGEST, Hops, Leg, Traffic
from thinwire.core.reducers import sharded
from thinwire.worlds import journeys
from thinwire.worlds.journeys import Journey, order_of, parcels_of
from thinwire.worlds.relay import Relay
from thinwire.worlds.streams import Stream, Streams


class Numbers:
    """An item that sends bytes made of rank, leg and what it took in the leg that this one needs."""

    def __init__(self, rank: int, size: int, legs: list[Leg], exact: bool) -> None:
        self.rank, self.length, self.legs = rank, size, legs
        self.size, self.about, self.longest = size if exact else None, size, LONGEST
        self.traffic = Traffic()
        self.came: dict[int, Tensor] = {}
        self.prepared: dict[int, int] = {}
        self.gone_legs: list[int] = []

    def prepare(self, leg: int) -> bool:
        self.prepared[leg] = self.prepared.get(leg, 0) + 1
        return self.prepared[leg] > 2

    def give(self, leg: int) -> Tensor:
        needs = self.legs[leg].needs
        seed = 0 if needs < 0 else int(self.came[needs].sum()) if self.length else 0
        length = self.length + (0 if self.size is not None else 10 * self.rank + leg)
        return torch.full((length,), (seed + 16 * self.rank + leg) % 251, dtype=torch.uint8)

    def gone(self, leg: int) -> None:
        self.gone_legs.append(leg)

    def take(self, leg: int, message: Tensor) -> None:
        self.came[leg] = message.clone()


def travelled(all_streams: list[dict[int, Stream]], sizes: list[int], exact: bool) -> list[list[Numbers]]:
    ranks = len(all_streams)

    def body(rank: int) -> list[Numbers]:
        legs = list(sharded._legs(rank, ranks))
        items = [Numbers(rank, size, legs, exact) for size in sizes]
        Journey(Hops(legs, items, torch.device("cpu")), all_streams[rank], 1, Buffers(), 20.0).make()
        return items

    return on_all(ranks, body)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("exact", [True, False])
def test_everyone_gets_what_was_meant_for_it(ranks: int, exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journeys, "_PARCEL", 1000)
    sizes = [0, 5, 3000, 70_000, 1, 999, 1001, 400_000]
    all_streams = meet(ranks)
    everyone = travelled(all_streams, sizes, exact)
    close(all_streams)
    for rank, items in enumerate(everyone):
        legs = list(sharded._legs(rank, ranks))
        for at, item in enumerate(items):
            assert item.gone_legs == list(range(len(legs)))
            for number, leg in enumerate(legs):
                sender = everyone[leg.source][at]
                assert torch.equal(item.came[number], sender.give(number))


@pytest.mark.timeout(60)
def test_work_that_nobody_waits_for_is_done_where_ranks_would_wait() -> None:
    all_streams = meet(2)
    done: list[list[int]] = [[], []]

    def body(rank: int) -> None:
        legs = list(sharded._legs(rank, 2))
        left = list(range(5))

        def spare() -> bool:
            if left:
                done[rank].append(left.pop())
            return bool(left)

        if rank == 1:
            time.sleep(0.2)  # rank 0 has time
        items = [Numbers(rank, 1000, legs, True)]
        Journey(Hops(legs, items, torch.device("cpu"), [spare]), all_streams[rank], 1, Buffers(), 20.0).make()

    on_all(2, body)
    close(all_streams)
    assert done[0] == [4, 3, 2, 1, 0]


class Dawdling(Numbers):
    """Rank 1 has sent all it has long before it takes the last message, which no socket can hold."""

    def gone(self, leg: int) -> None:
        if self.rank == 1 and leg == 1:
            time.sleep(0.3)

    def give(self, leg: int) -> Tensor:
        return torch.full((1 if self.rank else 30_000_000,), leg, dtype=torch.uint8)


@pytest.mark.timeout(60)
def test_the_last_to_leave_ends_the_journey() -> None:
    both = meet(2)

    def body(rank: int) -> Dawdling:
        legs = list(sharded._legs(rank, 2))
        item = Dawdling(rank, 0, legs, exact=False)
        Journey(Hops(legs, [item], torch.device("cpu")), both[rank], 1, Buffers(), 5.0).make()
        return item

    first, second = on_all(2, body)
    close(both)
    assert [message.tolist() for message in first.came.values()] == [[0], [1]]
    assert all(message.eq(leg).all() and len(message) == 30_000_000 for leg, message in second.came.items())


@given(st.integers(2, 6), st.integers(1, 9))
def test_the_order_is_the_same_at_both_ends_and_nothing_waits_for_itself(ranks: int, parcels: int) -> None:
    for rank in range(ranks):
        legs = sharded._legs(rank, ranks)
        order = order_of(legs, parcels)
        assert sorted(order) == [(leg, number) for leg in range(len(legs)) for number in range(parcels)]
        position = {parcel: at for at, parcel in enumerate(order)}
        for leg, number in order:
            if legs[leg].needs >= 0:
                assert position[(legs[leg].needs, number)] < position[(leg, number)]  # type: ignore[index]
        for peer in range(ranks):
            theirs = order_of(sharded._legs(peer, ranks), parcels)
            sent = [parcel for parcel in order if legs[parcel.leg].to == peer]
            assert sent == [p for p in theirs if sharded._legs(peer, ranks)[p.leg].source == rank]


@given(st.lists(st.integers(0, 4 * journeys._PARCEL), min_size=1, max_size=60))
def test_parcels_are_all_items_in_order(sizes: list[int]) -> None:
    parcels = parcels_of(sizes)
    assert [at for parcel in parcels for at in parcel] == list(range(len(sizes)))
    filled = [sum(sizes[at] for at in parcel) for parcel in parcels]
    assert len(parcels) <= journeys._PARCELS
    assert len(parcels) == 1 or min(filled) >= journeys._PARCEL


@pytest.mark.timeout(60)
@pytest.mark.parametrize("exact", [True, False])
def test_more_items_than_the_kernel_takes_at_once(exact: bool) -> None:
    all_streams = meet(2)
    first, second = travelled(all_streams, [3] * 3000, exact)
    found = on_all(
        2, lambda rank: Relay(rank, all_streams[rank], 1, Buffers(), 20.0).make([torch.ones(2).byte()] * 3000, 2)
    )
    close(all_streams)
    assert all(torch.equal(mine.came[1], theirs.give(1)) for mine, theirs in zip(first, second, strict=True))
    assert [len(items) for items in found[0]] == [3000, 3000]


def journey_of(rank: int, mine: dict[int, Stream], serial: int = 1, patience: float = 20.0, size: int = 100) -> Journey:
    legs = list(sharded._legs(rank, len(mine) + 1))
    hops = Hops(legs, [Numbers(rank, size, legs, exact=True)], torch.device("cpu"))
    return Journey(hops, mine, serial, Buffers(), patience)


@pytest.mark.timeout(60)
def test_a_peer_that_left_is_named() -> None:
    first, second = meet(2)
    second[0].close()
    with pytest.raises(thinwire.WorldError, match="the connection to rank 1 is lost"):
        journey_of(0, first).make()
    close([first])


@pytest.mark.timeout(60)
def test_a_silent_peer_is_named_after_a_while() -> None:
    both = meet(2)
    with pytest.raises(thinwire.WorldError, match=r"rank 1 did not answer for 0\.2 s"):
        journey_of(0, both[0], patience=0.2).make()
    close(both)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("serial", "size"), [(2, 100), (1, 101)])
def test_a_message_that_is_not_due_is_refused(serial: int, size: int) -> None:
    both = meet(2)

    def body(rank: int) -> None:
        journey = journey_of(rank, both[rank], serial=serial if rank else 1, size=size if rank else 100)
        with pytest.raises(thinwire.WireError, match=f"rank {1 - rank} sent another message than the one that is due"):
            journey.make()

    on_all(2, body)
    close(both)


@pytest.mark.timeout(60)
def test_after_a_failure_all_connections_end_and_none_is_used_again() -> None:
    first, second = meet(2)
    mine = Streams(first, 20.0)
    with pytest.raises(ZeroDivisionError), mine.journey():
        raise ZeroDivisionError
    with pytest.raises(thinwire.WorldError, match="the connection to rank 0 is lost"):
        journey_of(1, second).make()
    with pytest.raises(thinwire.WorldError, match="because an exchange failed before"), mine.journey():
        pass
    close([second])


@pytest.mark.timeout(60)
def test_peers_learn_of_a_failure_even_if_a_fork_holds_the_connection() -> None:
    first, second = meet(2)
    held = first[1].connection.dup()  # as a forked worker has it
    with pytest.raises(ZeroDivisionError), Streams(first, 20.0).journey():
        raise ZeroDivisionError
    with pytest.raises(thinwire.WorldError, match="the connection to rank 0 is lost"):
        journey_of(1, second).make()
    held.close()
    close([second])


def test_two_threads_on_one_group_are_refused() -> None:
    streams_of_one = Streams({}, 1.0)
    with (
        streams_of_one.journey(),
        pytest.raises(thinwire.WorldError, match="two threads average on one process group"),
        streams_of_one.journey(),
    ):
        pass
    with streams_of_one.journey() as number:
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
    for rank, said in enumerate(run_ranks(3, leaves_in_the_middle, seconds=60, dying=1)):
        assert said.startswith(f"rank {rank} of 3: Hops failed")
        assert "the connection to rank" in said
