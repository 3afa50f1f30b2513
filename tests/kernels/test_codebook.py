import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.numbers import same
from thinwire.errors import WireError
from thinwire.kernels import codebook
from thinwire.kernels.reference import codebook as reference

pytestmark = pytest.mark.usefixtures("variant")


def draws(n: int, seed: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=g) ** (1 + 2 * (seed % 3)) * 10.0 ** (seed % 60 - 30)
    return x.round() if seed % 5 == 0 else x + (seed % 2) * 3


@given(
    n=st.integers(1, 700), bits=st.integers(2, 8), sigmas=st.sampled_from([0.5, 6.0, 12.0]), seed=st.integers(0, 999)
)
@settings(deadline=None)
def test_both_forms_find_the_same_bins_and_levels(n: int, bits: int, sigmas: float, seed: int) -> None:
    x = draws(n, seed)
    codes, levels = codebook.quantise(x, bits, sigmas)
    strided = torch.stack([x, x], 1)[:, 0]  # not contiguous: the reference works
    expected, means = codebook.quantise(strided, bits, sigmas)
    assert torch.equal(codes, expected)
    assert same(levels, means)
    out, add = torch.empty(n), torch.ones(n)
    codebook.dequantise(codes, levels, out, "write")
    assert same(out, reference.values(codes, levels))
    codebook.dequantise(codes, levels, add, "add")
    assert same(add, 1 + out)


@given(n=st.integers(1, 500), bits=st.integers(2, 8), seed=st.integers(0, 999))
@settings(deadline=None)
def test_a_level_is_the_mean_of_its_bin_and_bins_keep_the_order(n: int, bits: int, seed: int) -> None:
    x = draws(n, seed)
    codes, levels = codebook.quantise(x, bits, 6.0)
    tolerance = 1e-6 * float(x.abs().max())
    for code in codes.unique().tolist():
        assert abs(float(levels[code]) - float(x[codes == code].double().mean())) <= tolerance
    assert bool((codes[x.argsort()].int().diff() >= 0).all())


def test_equal_numbers_and_zeros_come_back_exactly() -> None:
    for value in (0.0, 1.0, -3.25, 1e-42, 3e38):
        codes, levels = codebook.quantise(torch.full((100,), value), 2, 6.0)
        assert levels[codes.long()].tolist() == torch.full((100,), value).tolist()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_makes_all_levels_nan(bad: float) -> None:
    codes, levels = codebook.quantise(torch.tensor([1.0, bad, 2.0]), 2, 6.0)
    assert torch.isnan(levels).all()
    assert codes.tolist() == [0, 0, 0]


def test_the_order_of_numbers_and_their_split_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    x = draws(5000, 7)
    _, levels = codebook.quantise(x, 4, 6.0)
    shuffled = x[torch.randperm(5000, generator=torch.Generator().manual_seed(1))]
    assert same(codebook.quantise(shuffled, 4, 6.0)[1], levels)
    monkeypatch.setattr(codebook, "MOST_AT_ONCE", 300)
    assert same(codebook.quantise(x, 4, 6.0)[1], levels)


def test_a_symbol_without_a_level_is_refused() -> None:
    with pytest.raises(WireError, match="no level"):
        codebook.dequantise(torch.tensor([4], dtype=torch.uint8), torch.zeros(4), torch.zeros(1), "write")
