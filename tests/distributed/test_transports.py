"""TCP connections and the backend's send and receive give the same; each serves the right devices."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

import thinwire
from tests.distributed.processes import run_ranks
from thinwire.core import shards
from thinwire.core.average import average
from thinwire.core.ops import AllGather
from thinwire.core.reducers import sharded
from thinwire.worlds import group
from thinwire.worlds.distributed import Distributed
from thinwire.worlds.tcp import exchange

ROWS = ("qsgd(bits=4)", "qsgd(bits=4) | huffman", "sign", "topk(density=0.3)")


@pytest.mark.parametrize(
    ("config", "devices"),
    [
        ("cpu:gloo", {"cpu"}),  # of a group that was made without naming a backend
        ("cpu:gloo,cuda:gloo", {"cpu", "cuda"}),
        ("cpu:gloo,cuda:nccl", {"cpu"}),
        ("cuda:nccl", set()),
    ],
)
def test_the_backend_goes_by_the_device(config: str, devices: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_backend_config", lambda handle: config)
    assert group.devices_of("gloo", None) == devices


def averages(rank: int, ranks: int) -> dict[str, Any]:
    """The same averages over TCP, in small slices and frames, and over the backend, as on other devices."""
    sharded.LONG, shards.SLICE, exchange._FRAME_BYTES = 1, 1, 1
    means: dict[str, Any] = {}
    for row in ROWS:
        for devices in ({"cpu"}, set[str]()):
            world, slot = Distributed(), thinwire.Slot()
            world._tcp_devices = devices
            for step in range(2):
                info = thinwire.StepInfo(rank, ranks, 7, step, "sharded", buffers=world.buffers)
                mine = torch.randn(4000, generator=torch.Generator().manual_seed(10 * step + rank))
                mean = world.drive(average(thinwire.Codec.parse(row), mine, slot, info))
            means[f"{row} {bool(devices)}"] = mean.numpy(), world.sent
    means["exchanges over TCP"] = Distributed()._tcp.connections.exchanges
    return means


@pytest.mark.distributed
@pytest.mark.timeout(90)
@pytest.mark.parametrize("ranks", [2, 3])
def test_both_transports_give_the_same(ranks: int) -> None:
    means = run_ranks(ranks, averages, seconds=80)
    for rank in range(ranks):
        assert means[rank]["exchanges over TCP"] == 2 * len(ROWS)  # and not over the backend unnoticed
        for row in ROWS:
            expected, sent = means[0][f"{row} True"]
            for over_tcp in (True, False):
                mean, bytes_sent = means[rank][f"{row} {over_tcp}"]
                assert (mean == expected).all()
                assert bytes_sent == sent or "huffman" in row or "topk" in row
            assert means[rank][f"{row} True"][1] == means[rank][f"{row} False"][1]


def gathers(rank: int, ranks: int) -> list[list[list[list[int]]]]:
    """Items of unequal length over both transports; over the backend for items that are no bytes."""
    items = [torch.arange(2 * rank, dtype=torch.uint8), torch.full((5 - rank,), rank, dtype=torch.uint8)]
    found = []
    for devices, given in (({"cpu"}, items), (set[str](), items), ({"cpu"}, [item.float() for item in items])):
        world = Distributed()
        world._tcp_devices = devices
        reply = world.perform(AllGather(given, exact=False, longest=100))
        found.append([[item.int().tolist() for item in each] for each in reply])
    assert Distributed()._tcp.connections.exchanges == 1
    return found


@pytest.mark.distributed
@pytest.mark.timeout(90)
def test_both_transports_gather_items_of_unequal_length() -> None:
    expected = [[list(range(2 * rank)), [rank] * (5 - rank)] for rank in range(3)]
    for found in run_ranks(3, gathers, seconds=80):
        assert found == [expected] * 3


def closes_and_averages(rank: int, ranks: int) -> tuple[int, int, bool, float]:
    sharded.LONG = 1
    own, x = dist.new_group([0, 1]), torch.full((4000,), float(rank))
    world = Distributed(own)
    world.close_connections()  # there are none yet
    thinwire.average(x, "qsgd(bits=8)", group=own, reduction="sharded")
    first = world._tcp.connections
    world.close_connections()
    mean = thinwire.average(x, "qsgd(bits=8)", group=own, reduction="sharded", step=1)
    return first.exchanges, world._tcp.connections.exchanges, first.closed, float(mean[0])


@pytest.mark.distributed
@pytest.mark.timeout(90)
def test_after_connections_are_closed_the_next_average_opens_new_ones() -> None:
    for before, after, closed, mean in run_ranks(2, closes_and_averages, seconds=80):
        assert (before, after, closed) == (1, 1, True)
        assert abs(mean - 0.5) < 0.01
