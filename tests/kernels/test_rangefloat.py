"""Range-based floats: the grid, its error bounds, and the compiled form against the reference."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from thinwire.errors import CodecError, WireError
from thinwire.kernels import packing, rangefloat
from thinwire.kernels.rangefloat import RangeGrid, Rounding, rangefloat_grid
from thinwire.kernels.reference import rangefloat as reference
from thinwire.kernels.reference.hashing import make_key

FORMATS = [(4, 0), (4, 1), (5, 2), (8, 0), (8, 3), (8, 5), (9, 4), (10, 5), (12, 9), (16, 0), (16, 10), (16, 13)]
ORDINARY = [(-0.31, 0.52), (0.0, 2.0), (-1e-3, 0.0), (-1e-30, 1.0)]
RANGES = [*ORDINARY, (-3.4e38, 3.4e38), (0.0, 0.0), (-1e-41, 1e-42), (-1.9, 1e-38)]
ROUNDINGS: list[Rounding] = ["nearest", "stochastic"]
magnitudes = st.floats(0, 3.4028234663852886e38, width=32)


def values(grid: RangeGrid, bits: int, mantissa: int) -> Tensor:
    """The value of every code of the grid."""
    codes = torch.arange(1 + grid.positives + grid.negatives).to(packing.symbol_dtype(bits))
    out = torch.empty(codes.numel())
    rangefloat.rangefloat_dequantise(codes, bits, mantissa, grid, out, False)
    return out


@pytest.mark.parametrize(("bits", "mantissa"), FORMATS)
@pytest.mark.parametrize(("minimum", "maximum"), RANGES)
def test_every_code_survives(bits: int, mantissa: int, minimum: float, maximum: float) -> None:
    grid = rangefloat_grid(bits, mantissa, minimum, maximum)
    points = values(grid, bits, mantissa)
    codes, saturated = rangefloat.rangefloat_symbols(points, bits, mantissa, grid, "nearest", 0, 0)
    assert codes.tolist() == list(range(points.numel()))
    drawn, _ = rangefloat.rangefloat_symbols(points, bits, mantissa, grid, "stochastic", 5, 0)
    assert torch.equal(drawn, codes)
    assert saturated == 0


@given(st.sampled_from(FORMATS), magnitudes, magnitudes)
def test_grid_is_monotone_and_covers_the_range(width: tuple[int, int], low: float, high: float) -> None:
    bits, mantissa = width
    grid = rangefloat_grid(bits, mantissa, -low, high)
    assert 1 + grid.positives + grid.negatives <= 2**bits
    assert (grid.positives > 0) == (high > 0)
    assert (grid.negatives > 0) == (low > 0)
    points = values(grid, bits, mantissa)
    positive, negative = points[1 : grid.positives + 1], points[grid.positives + 1 :]
    assert points[0] == 0
    assert points.isfinite().all()
    assert (positive[1:] > positive[:-1]).all()
    assert (negative[1:] < negative[:-1]).all()
    largest = torch.finfo(torch.float32).max * (1 - 2.0 ** -(mantissa + 1))  # beyond, no grid point is finite
    for end, asked in ((positive, high), (-negative, low)):
        if asked > 0:
            assert end[-1] >= min(asked, largest)


@pytest.mark.parametrize(("bits", "mantissa"), FORMATS)
@pytest.mark.parametrize(("minimum", "maximum"), RANGES)
def test_error_bounds(bits: int, mantissa: int, minimum: float, maximum: float) -> None:
    """Relative error at most 2^-(m+1) from eps upwards, absolute error at most eps / 2 below."""
    generator = torch.Generator().manual_seed(bits * 100 + mantissa)
    draw = torch.rand(4000, generator=generator, dtype=torch.float64) ** 6
    x = torch.cat((draw * minimum, draw * maximum)).float()
    grid = rangefloat_grid(bits, mantissa, minimum, maximum)
    eps = torch.tensor(grid.base << (23 - mantissa), dtype=torch.int32).view(torch.float32).double()
    codes, saturated = rangefloat.rangefloat_symbols(x, bits, mantissa, grid, "nearest", 0, 0)
    out = torch.empty_like(x)
    rangefloat.rangefloat_dequantise(codes, bits, mantissa, grid, out, False)
    ends = values(grid, bits, mantissa)
    assert saturated == int(((x > ends.max()) | (x < ends.min())).sum())
    inside = (x <= ends.max()) & (x >= ends.min())
    error, size = (out.double() - x.double()).abs()[inside], x.double().abs()[inside]
    assert (error <= torch.where(size >= eps, size * 2.0 ** -(mantissa + 1), eps / 2)).all()


def sample(n: int, rng: random.Random) -> Tensor:
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    x = torch.randn(n, generator=generator)
    kind = rng.randrange(6)
    if kind == 1:
        x = x * torch.pow(10.0, torch.rand(n, generator=generator) * 80 - 45).clamp(max=1e37)
    elif kind == 2:
        x = x * 1e-41
    elif kind == 3:
        x = torch.where(x > 0, 0.0, -0.0)
    elif kind == 4 and n:
        x[rng.randrange(n)] = rng.choice([float("nan"), float("inf"), float("-inf")])
    return x


@pytest.mark.parametrize(("bits", "mantissa"), FORMATS)
def test_compiled_equals_reference(bits: int, mantissa: int, variant: str) -> None:
    rng = random.Random(bits * 100 + mantissa)
    for n in (0, 1, 7, 8, 9, 100, 511, 512, 513, 1024, 1025, 1100):
        for minimum, maximum in RANGES:
            x = sample(n, rng)
            grid = rangefloat_grid(bits, mantissa, minimum, maximum)
            rounding = rng.choice(ROUNDINGS)
            given = (bits, mantissa, grid, rounding, rng.getrandbits(64), rng.choice([0, 2**32 - 5]))
            symbols, saturated = reference.rangefloat_symbols(x, *given)
            found, count = rangefloat.rangefloat_symbols(x, *given)
            assert torch.equal(found, symbols), (n, given)
            assert count == saturated
            packed = torch.empty(packing.packed_size(n, bits) + 1, dtype=torch.uint8)[1:]
            assert rangefloat.rangefloat_encode(x, *given, packed) == saturated
            assert torch.equal(packed, packing.pack(symbols, bits))
            if rng.random() < 0.3:
                symbols = torch.randint(0, 2**bits, (n,)).to(symbols.dtype)
                packed.copy_(packing.pack(symbols, bits))
            for add in (False, True):
                expected, plain, fused = (torch.linspace(-1, 1, n) for _ in range(3))
                reference.rangefloat_dequantise(symbols, bits, mantissa, grid, expected, add)
                rangefloat.rangefloat_dequantise(symbols, bits, mantissa, grid, plain, add)
                rangefloat.rangefloat_decode(packed, bits, mantissa, grid, fused, add)
                assert torch.equal(plain.view(torch.int32), expected.view(torch.int32))
                assert torch.equal(fused.view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize(("bits", "mantissa"), [(4, 0), (6, 2), (8, 3), (10, 5)])
def test_stochastic_rounding_is_unbiased(bits: int, mantissa: int) -> None:
    """4,000 draws: |z| < 5.5 at each of 256 coordinates; over the 4 cases the error probability is below 5e-5.

    Coordinates with fewer than 40 changes are too rare for a normal z and are left out.
    """
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(256, generator=generator) * torch.pow(10.0, torch.rand(256, generator=generator) * 3 - 3)
    grid = rangefloat_grid(bits, mantissa, x.min().item(), x.max().item())
    draws = torch.empty(4000, 256)
    for step in range(4000):
        key = make_key(0, step, 0, 0)
        codes, saturated = rangefloat.rangefloat_symbols(x, bits, mantissa, grid, "stochastic", key, 0)
        rangefloat.rangefloat_dequantise(codes, bits, mantissa, grid, draws[step], False)
        assert saturated == 0
    draws = draws.double()
    rare = (draws != draws.mode(0).values).sum(0) < 40
    z = ((draws.mean(0) - x.double()) / (draws.std(0) / 4000**0.5))[~rare]
    assert z.numel() > 150
    assert z.abs().max() < 5.5
    assert abs(z.mean()) < 5.5 / z.numel() ** 0.5


def test_saturation_is_counted() -> None:
    grid = rangefloat_grid(8, 3, -1.0, 2.0)
    x = torch.tensor([2.0, 2.5, -1.0, -1.5, 0.0, float("inf")])
    codes, saturated = rangefloat.rangefloat_symbols(x, 8, 3, grid, "nearest", 0, 0)
    out = torch.ones(6)
    rangefloat.rangefloat_dequantise(codes, 8, 3, grid, out, True)
    assert saturated == 3
    assert out.tolist() == [3.0, 3.0, 0.0, 0.0, 1.0, 3.0]


def test_mantissa_with_the_smallest_error_is_chosen() -> None:
    """Narrow data want mantissa, data over many octaves want exponent."""
    generator = torch.Generator().manual_seed(0)
    narrow = torch.rand(2000, generator=generator) + 1
    wide = torch.pow(2.0, -20 * torch.rand(2000, generator=generator)) * torch.randn(2000, generator=generator).sign()
    assert rangefloat.rangefloat_choose_mantissa(narrow, 8) == 5
    assert 1 <= rangefloat.rangefloat_choose_mantissa(wide, 8) <= 4
    assert rangefloat.rangefloat_choose_mantissa(torch.randn(2000, generator=generator) * 0.02, 8) in (3, 4)
    for empty in (torch.empty(0), torch.zeros(5), torch.tensor([float("nan")])):
        assert rangefloat.rangefloat_choose_mantissa(empty, 8) == 3


@pytest.mark.parametrize("bits", [4, 8, 10, 16])
@pytest.mark.parametrize("numel", [1, 7, 511, 513, 5000])
def test_chosen_mantissa_is_that_of_codes_that_are_decoded(bits: int, numel: int) -> None:
    """The compiled form measures all widths without giving codes away."""
    generator = torch.Generator().manual_seed(numel)
    x = torch.randn(numel, generator=generator) * torch.exp(torch.randn(numel, generator=generator))
    errors, decoded = [], torch.empty_like(x)
    for mantissa in range(bits - 2):
        grid = rangefloat_grid(bits, mantissa, float(x.min()), float(x.max()))
        codes, _ = reference.rangefloat_symbols(x, bits, mantissa, grid, "nearest", 0, 0)
        reference.rangefloat_dequantise(codes, bits, mantissa, grid, decoded, False)
        errors.append(float((decoded - x).double().square().sum()))
    assert errors[rangefloat.rangefloat_choose_mantissa(x, bits)] == pytest.approx(min(errors), rel=1e-12, abs=0.0)


def test_impossible_formats_are_refused() -> None:
    with pytest.raises(CodecError, match="4 to 16 bits, not 3"):
        rangefloat_grid(3, 0, -1, 1)
    with pytest.raises(CodecError, match="0 to 5 mantissa bits, not 6"):
        rangefloat_grid(8, 6, -1, 1)
    for low, high in ((1.0, -1.0), (float("nan"), 1.0), (0.0, float("inf"))):
        with pytest.raises(CodecError, match="finite range"):
            rangefloat_grid(8, 3, low, high)
    with pytest.raises(CodecError, match="'nearest' or 'stochastic'"):
        rangefloat.rangefloat_symbols(torch.ones(3), 8, 3, rangefloat_grid(8, 3, -1, 1), "up", 0, 0)  # type: ignore[arg-type]
    with pytest.raises(WireError, match="another codec"):
        rangefloat.rangefloat_decode(torch.zeros(9).byte(), 8, 3, rangefloat_grid(8, 3, -1, 1), torch.zeros(8), True)
