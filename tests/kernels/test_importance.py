"""Importance: the compiled kernels give the reference's bits and choose the reference's positions."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.numbers import any_bits, same
from thinwire.errors import CodecError
from thinwire.kernels import importance as kernels
from thinwire.kernels.reference import importance as reference

pytestmark = pytest.mark.usefixtures("variant")
LENGTHS = [*range(1, 40), 63, 64, 65, 511, 512, 1000, 1100, 5003]


def pair(n: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, generator=generator), torch.randn(n, generator=generator) * 0.02


@pytest.mark.parametrize("guard", [0.01, 1.0, 50.0])
def test_importance_is_the_references(guard: float) -> None:
    for n in LENGTHS:
        v, w = pair(n, n)
        for weights in (w, torch.zeros(n), w * 1e-42, w * 1e38, w.round()):
            for ranks in (1, 3):
                expected = reference.importance(v, weights, guard, ranks)
                assert same(kernels.importance(v, weights, guard, ranks), expected)
                assert not expected.isnan().any()
        strange = any_bits(n, n)
        assert same(kernels.importance(strange, w, guard, 2), reference.importance(strange, w, guard, 2))
        assert same(kernels.importance(v, strange, guard, 2), reference.importance(v, strange, guard, 2))


@settings(deadline=None)
@given(st.integers(1, 40_000), st.integers(0, 2**31), st.sampled_from([0.001, 1 / 64, 0.1, 0.5, 1.0]), st.booleans())
def test_the_most_important_are_the_references(n: int, seed: int, density: float, tied: bool) -> None:
    v, w = pair(n, seed)
    if tied:
        v, w = v.round(), torch.full_like(w, 0.5)
    k = max(1, int(density * n))
    chosen = kernels.most_important(v, w, 1.0, 4, k)
    assert torch.equal(chosen, reference.most_important(v, w, 1.0, 4, k))
    assert chosen.numel() == k


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_that_are_not_finite_come_first(bad: float) -> None:
    v, w = pair(20_000, 1)
    v[777] = bad
    for k in (1, 300):
        chosen = kernels.most_important(v, w, 1.0, 2, k)
        assert 777 in chosen.tolist()
        assert torch.equal(chosen, reference.most_important(v, w, 1.0, 2, k))


def test_a_sample_that_misleads_only_costs_time() -> None:
    n = 1 << 17
    w, stride = torch.ones(n), n // 16384 | 1
    for inside, outside in ((9.0, 1.0), (1.0, 9.0)):
        v = outside + torch.arange(n) / n
        v[stride // 2 :: stride] = inside + torch.arange(len(v[stride // 2 :: stride])) / n
        for k in (10, 2000, n // 32):
            assert torch.equal(kernels.most_important(v, w, 1.0, 1, k), reference.most_important(v, w, 1.0, 1, k))


def test_the_root_mean_square_is_right() -> None:
    v, w = torch.ones(100_000), pair(100_000, 3)[1]
    rms = w.double().square().mean().sqrt()
    expected = 1 / (w.abs().double() + rms)
    assert torch.allclose(kernels.importance(v, w, 1.0).double(), expected, rtol=1e-6)


def test_wrong_input_is_refused() -> None:
    v, w = pair(8, 0)
    with pytest.raises(CodecError, match="of one length"):
        kernels.importance(v, w[:7], 1.0)
    with pytest.raises(CodecError, match="of one length"):
        kernels.most_important(v, w.double(), 1.0, 1, 2)
    with pytest.raises(CodecError, match="0 to 8"):
        kernels.most_important(v, w, 1.0, 1, 9)
