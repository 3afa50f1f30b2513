"""Journeys over streams and leg by leg through the backend give the same; what the backend serves is known."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

import thinwire
from tests.distributed.processes import run_ranks
from thinwire.core import shards
from thinwire.core.average import average
from thinwire.core.reducers import sharded
from thinwire.worlds import exchanges, journeys
from thinwire.worlds.distributed import Distributed

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
    monkeypatch.setattr(dist, "get_backend_config", lambda group: config)
    assert exchanges._devices_of("gloo", None) == devices


def averages(rank: int, ranks: int) -> dict[str, Any]:
    """The same averages over streams, in small slices and parcels, and leg by leg, as other backends send them."""
    sharded.LONG, shards.SLICE, journeys._PARCEL = 1, 1, 1
    means: dict[str, Any] = {}
    for row in ROWS:
        for devices in ({"cpu"}, set[str]()):
            world, slot = Distributed(), thinwire.Slot()
            world._gloo = devices
            for step in range(2):
                turn = thinwire.StepInfo(rank, ranks, 7, step, "sharded", buffers=world.buffers)
                mine = torch.randn(4000, generator=torch.Generator().manual_seed(10 * step + rank))
                mean = world.drive(average(thinwire.Codec.parse(row), mine, slot, turn))
            means[f"{row} {bool(devices)}"] = mean.numpy(), world.sent
    streams = Distributed()._streams(torch.device("cpu"))
    means["journeys"] = 0 if streams is None else streams.journeys
    return means


@pytest.mark.distributed
@pytest.mark.timeout(90)
@pytest.mark.parametrize("ranks", [2, 3])
def test_streams_and_legs_give_the_same(ranks: int) -> None:
    means = run_ranks(ranks, averages, seconds=80)
    for rank in range(ranks):
        assert means[rank]["journeys"] == 2 * len(ROWS)  # and not by the other way unnoticed
        for row in ROWS:
            expected, sent = means[0][f"{row} True"]
            for streaming in (True, False):
                mean, bytes_sent = means[rank][f"{row} {streaming}"]
                assert (mean == expected).all()
                assert bytes_sent == sent or "huffman" in row or "topk" in row
            assert means[rank][f"{row} True"][1] == means[rank][f"{row} False"][1]
