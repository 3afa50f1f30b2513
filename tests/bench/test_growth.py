"""Exponents are fitted right, judged where they should be, and memory is that of the kernel."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinwire_lab.bench import growth
from thinwire_lab.bench.growth import COPY, MemoryRow, RankGrowth, SizeGrowth, exponent, grow_ranks, grow_sizes, weigh
from thinwire_lab.bench.results import BenchError, verdicts

SIZES = [2**12, 2**18, 2**20, 2**22]


@given(st.floats(-2, 3), st.floats(1e-6, 1e6))
def test_the_exponent_of_a_power_is_found(power: float, factor: float) -> None:
    assert exponent(SIZES, [factor * size**power for size in SIZES]) == pytest.approx(power, abs=1e-6)


def test_small_tensors_do_not_count() -> None:
    linear = [1e-3, *(1e-9 * size for size in SIZES[1:])]
    square = [1e-3, *(1e-9 * size**2 for size in SIZES[1:])]
    row = SizeGrowth("qsgd", SIZES, linear, square, SIZES)
    assert [row.encode_exponent, row.decode_exponent, row.bytes_exponent] == pytest.approx([1.0, 2.0, 1.0])
    assert verdicts(row) == {"encode exponent": True, "decode exponent": False}
    assert verdicts(SizeGrowth(COPY, SIZES, square, square, SIZES)) == {}
    assert growth.growth_table([row]).row_count == 1


def test_bytes_of_an_optimal_average_are_flat() -> None:
    ranks, times = [2, 4, 8], [1.0, 1.0, 1.0]
    flat = RankGrowth("qsgd", "sharded", ranks, times, times, [1000 * (p - 1) // p for p in ranks])
    growing = RankGrowth("topk", "sharded", ranks, [2.0, 4.0, 8.0], times, [1000 * (p - 1) for p in ranks])
    assert flat.bytes_exponent == pytest.approx(0.0, abs=1e-3)
    assert verdicts(flat) == {"bytes exponent": True}
    assert [growing.bytes_exponent, growing.time_exponent] == pytest.approx([1.0, 1.0])
    assert verdicts(growing) == {"bytes exponent": False}
    assert verdicts(RankGrowth("topk", "gathered", ranks, times, times, [1, 2, 3])) == {}
    assert growth.ranks_table([flat, growing]).row_count == 2


def test_only_sharded_averages_of_full_size_are_judged() -> None:
    full = growth.WEIGHED_NUMEL
    assert verdicts(MemoryRow("a", "sharded", "off", full, 4, 2.4)) == {"beyond the input": True}
    assert verdicts(MemoryRow("a", "sharded", "off", full, 4, 2.6)) == {"beyond the input": False}
    rows = [
        MemoryRow("a", "gathered", "off", full, 4, 9.0),
        MemoryRow("a", "sharded", "off", 100, 4, 9.0),
        MemoryRow("a", "sharded", "off", full, 4, None),
    ]
    assert not any(verdicts(row) for row in rows)
    assert growth.memory_table(rows).row_count == 3


def test_sizes_are_measured() -> None:
    sizes = [2**10, 2**17, 2**18]
    copy, codec = grow_sizes(["qsgd(bits=4)"], sizes, turns=1)
    assert (copy.codec, codec.codec) == (COPY, "qsgd(bits=4)")
    assert all(seconds > 0 for seconds in (*codec.encode_seconds, *codec.decode_seconds, *copy.encode_seconds))
    assert codec.bytes_exponent == pytest.approx(1.0, abs=0.01)


def test_too_little_for_a_fit_is_refused() -> None:
    with pytest.raises(BenchError, match="two sizes above 64 KiB"):
        grow_sizes(["sign"], [2**10, 2**20])
    for ranks in ([4], [4, 4], [1, 2]):
        with pytest.raises(BenchError, match="two different numbers of ranks"):
            grow_ranks(["sign"], ranks)


def test_ranks_are_launched_one_number_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def launched(module: str, job: dict[str, Any], hosts: int, link: str) -> dict[str, Any]:
        started.append((hosts, link))
        row = {"seconds": float(hosts), "bytes_sent": 100 * (hosts - 1) // hosts}
        return {"plain": 1.0, "codecs": dict.fromkeys(job["codecs"], row)}

    monkeypatch.setattr(growth, "launched", launched)
    (row,) = grow_ranks(["sign"], [2, 4], 2**20)
    assert started == [(2, "none"), (4, "none")]
    assert (row.reduction, row.bytes_sent) == ("sharded", [50, 75])
    assert row.time_exponent == pytest.approx(1.0)


def test_the_peak_can_be_forgotten() -> None:
    before = growth.forget_peak()
    if before is None:
        pytest.skip("this kernel does not tell")
    numbers = torch.ones(2**24)
    del numbers
    peak = growth.memory("VmHWM")
    assert peak is not None
    assert peak - before > 2**25
    growth.forget_peak()
    after = growth.memory("VmHWM")
    assert after is not None
    assert after < peak - 2**25


@pytest.mark.distributed
@pytest.mark.timeout(200)
def test_memory_of_averages() -> None:
    """At 8 MiB, a plain average holds at least its result, and a quantised one at least some of its messages."""
    rows = weigh(["none", "qsgd(bits=4)"], 2**21)
    assert [row.reduction for row in rows] == ["summed", "sharded"]
    least = {"none": 0.5, "qsgd(bits=4)": 0.1}
    assert all(row.beyond is None or least[row.codec] < row.beyond < 8 for row in rows)
