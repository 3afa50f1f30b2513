"""Which messages go in pieces, and how they are cut."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import thinwire
from tests.distributed.processes import run_ranks
from thinwire.core import cut, sharded
from thinwire.core.average import average
from thinwire.worlds import exchanges
from thinwire.worlds.distributed import Distributed


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


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_head_and_tail_are_the_parcel(dtype: torch.dtype) -> None:
    tail = exchanges._TAIL // dtype.itemsize
    for size in (0, 1, 2 * tail - 1, 2 * tail, 5 * tail + 3):
        parcel = torch.arange(size).to(dtype)
        pieces = exchanges.head_and_tail(parcel)
        assert torch.equal(torch.cat(pieces), parcel)
        assert [len(piece) for piece in pieces] == ([size - tail, tail] if size >= 2 * tail else [size])


@given(st.lists(st.integers(0, 4 * exchanges._PARCEL), min_size=1, max_size=60))
def test_parcels_are_all_items_in_order(sizes: list[int]) -> None:
    parcels = exchanges.parcels_of(sizes)
    assert [at for parcel in parcels for at in parcel] == list(range(len(sizes)))
    filled = [sum(sizes[at] for at in parcel) for parcel in parcels]
    assert len(parcels) <= exchanges._PARCELS
    assert len(parcels) == 1 or min(filled) >= exchanges._PARCEL


@given(st.lists(st.integers(0, 300), min_size=1, max_size=20), st.integers(1, 400))
def test_a_place_is_cut_into_its_items_and_into_what_comes(sizes: list[int], worth: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchanges, "_PARCEL", worth)
        patch.setattr(exchanges, "_TAIL", 16)
        flat = torch.arange(sum(sizes), dtype=torch.int32)
        place = exchanges.Place.of(flat, sizes, exchanges.parcels_of(sizes))
    assert [len(item) for item in place.items] == sizes
    assert torch.equal(torch.cat(place.items), flat)
    for parcel, pieces in zip(place.parcels, place.pieces, strict=True):
        assert torch.equal(torch.cat(pieces), torch.cat([place.items[at] for at in parcel]))


def averages(rank: int, ranks: int) -> dict[str, Any]:
    """The same average with messages in pieces, and as other backends send them, in pairs of send and receive."""
    sharded.LONG, cut.HALF, exchanges._TAIL, exchanges._PARCEL = 1, 1, 16, 1
    means = {}
    for row in ("qsgd(bits=4)", "qsgd(bits=4) | huffman", "sign"):
        for devices in ({"cpu"}, set[str]()):
            world, slot = Distributed(), thinwire.Slot()
            world._gloo = devices
            for step in range(2):
                turn = thinwire.Turn(rank, ranks, 7, step, "sharded", buffers=world.buffers)
                mine = torch.randn(4000, generator=torch.Generator().manual_seed(10 * step + rank))
                mean = world.drive(average(thinwire.Codec.parse(row), mine, slot, turn))
            means[f"{row} {bool(devices)}"] = mean.numpy()
    return means


@pytest.mark.distributed
@pytest.mark.timeout(90)
@pytest.mark.parametrize("ranks", [2, 3])
def test_pieces_and_pairs_give_the_same(ranks: int) -> None:
    means = run_ranks(ranks, averages, seconds=80)
    for row in ("qsgd(bits=4)", "qsgd(bits=4) | huffman", "sign"):
        first = means[0][f"{row} True"]
        assert all((first == means[rank][f"{row} {apart}"]).all() for rank in range(ranks) for apart in (True, False))


def takes_messages_apart(rank: int, ranks: int) -> bool:
    return "cpu" in Distributed()._gloo


@pytest.mark.distributed
@pytest.mark.timeout(60)
def test_processes_over_gloo_take_messages_apart() -> None:
    assert run_ranks(2, takes_messages_apart, seconds=50) == [True, True]
