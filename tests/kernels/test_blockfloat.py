import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.numbers import same
from thinwire.errors import WireError
from thinwire.kernels import blockfloat
from thinwire.kernels.reference import blockfloat as reference

pytestmark = pytest.mark.usefixtures("variant")
BITS = [4, 6, 8]
SPECIAL = [0.0, -0.0, math.nan, math.inf, -math.inf, 1e-45, -1e-38, 3.4e38, 6.0, 7.0, -448.0, 464.0, 0.25, 0.75, 1.25]


def draws(n: int, seed: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=g) * 10.0 ** torch.randint(-42, 38, (1,), generator=g)
    if seed % 3 == 0:
        x = torch.where(
            torch.rand(n, generator=g) < 0.02, torch.tensor(SPECIAL)[torch.randint(15, (n,), generator=g)], x
        )
    return (x * 4).round() / 4 if seed % 7 == 0 else x


def decoded(x: Tensor, bits: int) -> Tensor:
    exponents, symbols = blockfloat.block_encode(x, bits)
    blockfloat.block_decode(symbols, exponents, bits, out := torch.empty(x.numel()), "write")
    return out


@given(n=st.integers(0, 400), bits=st.sampled_from(BITS), seed=st.integers(0, 9999))
@settings(deadline=None)
def test_both_forms_write_and_read_the_same_bytes(n: int, bits: int, seed: int) -> None:
    x = draws(n, seed)
    exponents, symbols = blockfloat.block_encode(x, bits)
    expected = reference.encode(x, bits)
    assert torch.equal(exponents, expected[0])
    assert torch.equal(symbols, expected[1])
    values = reference.decode(symbols, exponents, bits)
    assert same(decoded(x, bits), values)
    onto, less = torch.full((n,), 0.5), torch.full((n,), 0.5)
    blockfloat.block_decode(symbols, exponents, bits, onto, "add")
    blockfloat.block_decode(symbols, exponents, bits, less, "subtract")
    assert same(onto, 0.5 + values)
    assert same(less, 0.5 - values)


@pytest.mark.parametrize(
    ("bits", "largest"), [(4, [0, 0.5, 1, 1.5, 2, 3, 4, 6]), (6, [0, 0.125, 0.25, 7.5]), (8, [0, 2.0**-9, 448])]
)
def test_codes_are_the_numbers_of_the_standard(bits: int, largest: list[float]) -> None:
    values = blockfloat.values_of(bits)
    finite = values[torch.isfinite(values)]
    assert set(largest) <= set(finite.tolist())
    assert float(finite.max()) == largest[-1]
    assert int(torch.isnan(values).sum()) == (2 if bits == 8 else 0)


@pytest.mark.parametrize("bits", BITS)
def test_numbers_of_the_format_come_back_exactly(bits: int) -> None:
    values = blockfloat.values_of(bits)
    values = values[torch.isfinite(values)]
    top = float(values.max())
    for scale in (2.0**-60, 1.0, 2.0**100):
        rows = torch.cat([torch.full((values.numel(), 1), top), values.view(-1, 1), torch.zeros(values.numel(), 30)], 1)
        assert torch.equal(decoded(rows.view(-1) * scale, bits), rows.view(-1) * scale)


@pytest.mark.parametrize("bits", BITS)
def test_each_number_becomes_the_nearest_of_the_format_ties_to_even(bits: int) -> None:
    values = blockfloat.values_of(bits)[: 2 ** (bits - 1)].double()
    values = values[torch.isfinite(values)]
    x = torch.rand(32 * 200, generator=torch.Generator().manual_seed(3)) * float(values[-1])
    x[::32] = float(values[-1])  # every block has the scale 1
    x[1::32] = ((values[2] + values[3]) / 2).float()  # a tie
    distance = (x.double().view(-1, 1) - values).abs()
    assert torch.equal(distance.amin(1), (decoded(x, bits).double() - x.double()).abs())
    assert decoded(x, bits)[1] == values[2]  # the even code


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("bits", BITS)
def test_a_block_that_is_not_finite_is_nan_and_its_neighbours_are_not(bits: int, bad: float) -> None:
    x = torch.ones(96)
    x[40] = bad
    found = decoded(x, bits)
    assert torch.isnan(found[32:64]).all()
    assert torch.equal(found[:32], x[:32])
    assert torch.equal(found[64:], x[64:])


def test_what_does_not_fit_is_refused() -> None:
    codes, exponents, out = torch.full((3,), 16, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8), torch.zeros(3)
    with pytest.raises(WireError, match="wider than 4 bits"):
        blockfloat.block_decode(codes, exponents, 4, out, "write")
    with pytest.raises(WireError, match="1 exponents"):
        blockfloat.block_decode(codes, exponents[:0], 8, out, "write")
