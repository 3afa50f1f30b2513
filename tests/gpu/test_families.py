"""Shares, packing, range floats and integers: compiled, emulated, and compared with the reference bit for bit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.gpu.cases import SPECIAL, out_of, special
from tests.gpu.emulation import emulated, reference
from thinwire.kernels import integers, packing, rangefloat, shares
from thinwire.kernels.answers.inputs import same_bits
from thinwire.kernels.reference.hashing import make_key
from thinwire.kernels.reference.integers import lane_count
from thinwire.kernels.reference.packing import packed_size, symbol_dtype
from thinwire.kernels.reference.rangefloat import Rounding, rangefloat_grid

LENGTHS = (1, 2, 7, 8, 9, 100, 511, 512, 513, 1023, 1024, 1100)
KEY, BASE = make_key(3, 7, 1, 5), 2**32 - 100


def compare(work: Callable[[], list[Tensor]], **target: Any) -> None:
    with reference():
        wanted = work()
    with emulated(**target):
        got = work()
    for ours, theirs in zip(got, wanted, strict=True):
        assert same_bits(ours, theirs)


def share_of(n: int, x: Tensor, ranks: int, residual: Tensor | None) -> list[Tensor]:
    shares.enter_share(x, ranks, residual, out := torch.empty(n))
    return [out, shares.finite_flag(x), shares.finite_flag(out)]


@pytest.mark.parametrize("ranks", [1, 3])
def test_shares(ranks: int) -> None:
    g = torch.Generator().manual_seed(0)
    for n in LENGTHS:
        x = torch.randn(n, generator=g)
        for residual in (None, out_of(n)):
            compare(lambda n=n, x=x, residual=residual: share_of(n, x, ranks, residual))  # type: ignore[misc]
    for kind in SPECIAL:
        x = special(kind, 2100, g)
        compare(lambda x=x: share_of(2100, x, ranks, out_of(2100)))  # type: ignore[misc]


def packed_and_back(symbols: Tensor, data: Tensor, bits: int) -> list[Tensor]:
    n = symbols.numel()
    return [packing.pack(symbols, bits), packing.unpack(data, n, bits)]


def check_packing(bits: int, lengths: tuple[int, ...]) -> None:
    g = torch.Generator().manual_seed(bits)
    for n in lengths:
        symbols = torch.randint(0, 2 ** min(bits + 1, 8), (n,), generator=g).to(symbol_dtype(bits))
        data = torch.randint(0, 256, (packed_size(n, bits),), generator=g, dtype=torch.uint8)
        compare(lambda symbols=symbols, data=data: packed_and_back(symbols, data, bits))  # type: ignore[misc]


@pytest.mark.parametrize("bits", [1, 7, 12])
def test_packing(bits: int) -> None:
    check_packing(bits, (1, 8, 9, 512, 700))


@pytest.mark.slow
@pytest.mark.parametrize("bits", range(1, 17))
def test_packing_of_all_widths(bits: int) -> None:
    check_packing(bits, (0, *LENGTHS))


def range_floats(x: Tensor, bits: int, mantissa: int, rounding: Rounding, data: Tensor) -> list[Tensor]:
    finite = x.nan_to_num(0.0, 1.0, -1.0)
    grid = rangefloat_grid(bits, mantissa, min(float(finite.min()), 0.0), max(float(finite.max()), 0.0))
    packed = torch.empty(packed_size(x.numel(), bits), dtype=torch.uint8)
    saturated = rangefloat.rangefloat_encode(x, bits, mantissa, grid, rounding, KEY, BASE, packed)
    rangefloat.rangefloat_decode(data, bits, mantissa, grid, added := out_of(x.numel()), True)
    rangefloat.rangefloat_decode(packed, bits, mantissa, grid, written := torch.empty_like(x), False)
    return [packed, torch.tensor(saturated), added, written]


def check_range_floats(bits: int, mantissa: int, rounding: Rounding, lengths: tuple[int, ...]) -> None:
    g = torch.Generator().manual_seed(bits)
    for n, kind in [(n, "ordinary") for n in lengths] + [(600, kind) for kind in SPECIAL]:
        x = special(kind, n, g)
        data = torch.randint(0, 256, (packed_size(n, bits),), generator=g, dtype=torch.uint8)
        compare(lambda x=x, data=data: range_floats(x, bits, mantissa, rounding, data))  # type: ignore[misc]


@pytest.mark.parametrize(("bits", "mantissa", "rounding"), [(8, 3, "stochastic"), (8, 4, "nearest")])
def test_range_floats(bits: int, mantissa: int, rounding: Rounding) -> None:
    check_range_floats(bits, mantissa, rounding, (1, 9, 512, 700))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("bits", range(4, 17))
def test_range_floats_of_all_widths(bits: int) -> None:
    for mantissa in (0, bits - 3):
        check_range_floats(bits, mantissa, "stochastic", LENGTHS)
        check_range_floats(bits, mantissa, "nearest", (9, 1100))


def lanes_and_back(x: Tensor, bits: int, ranks: int, given: Tensor) -> list[Tensor]:
    lanes = torch.empty(lane_count(x.numel(), bits), dtype=torch.int32)
    integers.integers_encode(x, ranks, bits, 2 ** (bits - 1) - 1, 1.0, 31.7, KEY, BASE, lanes)
    integers.integers_decode(given, bits, 0.03, 1.7, added := out_of(x.numel()), True)
    integers.integers_decode(lanes, bits, 0.03, 1.7, written := torch.empty_like(x), False)
    return [lanes, added, written]


def check_integers(bits: int, ranks: int, lengths: tuple[int, ...]) -> None:
    g = torch.Generator().manual_seed(bits)
    for n in lengths:
        x = torch.randn(n, generator=g)
        given = torch.randint(-(2**31), 2**31, (lane_count(n, bits),), generator=g).to(torch.int32)
        compare(lambda x=x, given=given: lanes_and_back(x, bits, ranks, given))  # type: ignore[misc]


@pytest.mark.parametrize(("bits", "ranks"), [(8, 3), (5, 1)])
def test_integers(bits: int, ranks: int) -> None:
    check_integers(bits, ranks, (1, 4, 9, 1100))


@pytest.mark.slow
@pytest.mark.parametrize("bits", range(2, 17))
def test_integers_of_all_widths(bits: int) -> None:
    check_integers(bits, 7, LENGTHS)
