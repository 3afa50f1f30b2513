"""Shares of a mean: the compiled pass gives the bits of torch's division and addition, and finds what is not finite."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.numbers import any_bits, same
from thinwire.errors import CodecError, WireError
from thinwire.kernels import native, shares
from thinwire.kernels.packing import packed_size
from thinwire.kernels.quantise import Kind, Norm, Scheme
from thinwire.kernels.reference import shares as reference

LENGTHS = [*range(40), 63, 64, 65, 511, 512, 1023, 1100]
RANKS = [1, 2, 3, 4, 5, 7, 8, 12, 1000, 1024, 2**24 - 1, 2**24]
LONG = 200_001
KINDS: list[Kind] = ["uniform", "exponential"]


@pytest.mark.parametrize("ranks", RANKS)
def test_a_share_is_torchs_quotient_and_sum(ranks: int, variant: str) -> None:
    for n in LENGTHS:
        x, residual = any_bits(n, n), any_bits(n, n + 1)
        for held in (None, residual):
            out, expected = torch.empty(n), x / ranks
            finite = shares.share_into(x, ranks, held, out)
            assert finite == bool(torch.isfinite(expected).all())
            assert same(out, expected if held is None else expected + held)


@given(st.integers(0, 300), st.integers(1, 64), st.integers(0, 2**31))
def test_the_reference_agrees(n: int, ranks: int, seed: int) -> None:
    x, residual = torch.randn(n, generator=torch.Generator().manual_seed(seed)), any_bits(n, seed)
    ours, theirs = torch.empty(n), torch.empty(n)
    assert shares.share_into(x, ranks, residual, ours) == reference.share_into(x, ranks, residual, theirs)
    assert same(ours, theirs)


def test_an_infinite_residual_is_not_an_infinite_share() -> None:
    out = torch.empty(3)
    assert shares.share_into(torch.ones(3), 2, torch.tensor([0.0, math.inf, math.nan]), out)
    assert not shares.share_into(torch.tensor([0.0, math.inf, 1.0]), 2, None, out)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_one_number_that_is_not_finite_is_found_anywhere(bad: float, variant: str) -> None:
    for n in (1, 2, 31, 33, 9000, LONG):
        x, out = torch.full((n,), 3.4e38), torch.empty(n)
        assert shares.all_finite(x)
        for at in {0, n // 2, n - 1, min(n - 1, 8192)}:
            x[at] = bad
            assert not shares.all_finite(x)
            assert not shares.share_into(x, 3, None, out)
            assert shares.largest_magnitude(x).item() == math.inf
            x[at] = 1.0


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_nothing(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, residual = any_bits(LONG, 1).nan_to_num(0.5, 1.0, -1.0), any_bits(LONG, 2)
    expected = x / 3 + residual
    largest = x.abs().amax()
    monkeypatch.setattr(native, "LEAST_SHARED", 0)
    torch.set_num_threads(threads)
    try:
        out = torch.empty(LONG)
        assert shares.share_into(x, 3, residual, out)
        assert same(out, expected)
        assert shares.largest_magnitude(x).item() == largest.item()
        x[LONG - 1] = math.nan
        assert not shares.all_finite(x)
        assert not shares.share_into(x, 3, residual, out)
    finally:
        torch.set_num_threads(1)


def test_largest_magnitude_is_that_of_torch(variant: str) -> None:
    for n in LENGTHS[1:]:
        x = any_bits(n, n)
        assert torch.equal(shares.largest_magnitude(x), reference.largest_magnitude(x))
    assert shares.largest_magnitude(torch.empty(0)).item() == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types_become_float32_before_they_are_divided(dtype: torch.dtype) -> None:
    x, out = torch.randn(100, generator=torch.Generator().manual_seed(0)).to(dtype), torch.empty(100)
    assert shares.share_into(x, 3, None, out)
    assert torch.equal(out, x.float() / 3)
    assert shares.all_finite(x)


def test_strided_and_shaped_tensors_are_taken() -> None:
    x, out = torch.randn(20, 10, generator=torch.Generator().manual_seed(0)), torch.empty(10, 20)
    assert shares.share_into(x.t(), 5, None, out)
    assert torch.equal(out, x.t() / 5)


def test_wrong_buffers_are_refused() -> None:
    x = torch.zeros(4)
    with pytest.raises(CodecError, match="of the shape"):
        shares.share_into(x, 2, None, torch.zeros(5))
    with pytest.raises(CodecError, match="of the shape"):
        shares.share_into(x, 2, torch.zeros(3), torch.zeros(4))
    with pytest.raises(CodecError, match="float32"):
        shares.share_into(x, 2, None, torch.zeros(4, dtype=torch.float64))
    with pytest.raises(CodecError, match="not 0"):
        shares.share_into(x, 0, None, torch.zeros(4))


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 1000])
@pytest.mark.parametrize("n", [0, 1, 511, 513, 8192, 8193, 20_000, 70_001])
@pytest.mark.parametrize("bucket", [1, 100, 512, 9000, 10**6])
def test_encoders_divide_like_a_share(ranks: int, n: int, bucket: int) -> None:
    x = torch.randn(n, generator=torch.Generator().manual_seed(n))
    for kind in KINDS:
        assert_divides_like_a_share(Scheme(kind, 4, bucket), x, ranks)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("norm", ["max", "l2"])
@pytest.mark.parametrize("ranks", [2, 4, 64, 3])
def test_encoders_divide_like_a_share_at_the_ends_of_the_range(kind: Kind, norm: Norm, ranks: int) -> None:
    """Quotients that become subnormal or zero, and scales on either side of those that are lifted."""
    noise = torch.Generator().manual_seed(ranks)
    for exponent in (-149, -130, -126, -101, -100, -99, -60, 0, 99, 100, 126):
        size = torch.randn(300, generator=noise).double() * 2.0**exponent
        spread = torch.exp2(-60 * torch.rand(300, generator=noise).double())
        for bits in (2, 4, 8):
            assert_divides_like_a_share(Scheme(kind, bits, 64, norm), (size * spread).float(), ranks)


def assert_divides_like_a_share(scheme: Scheme, x: Tensor, ranks: int) -> None:
    share = torch.empty_like(x)
    shares.share_into(x, ranks, None, share)
    written = []
    for numbers, by in ((x, ranks), (share, 1)):
        size = scheme.scale_bytes(x.numel()) + packed_size(x.numel(), scheme.bits)
        message = torch.empty(size, dtype=torch.uint8)
        scheme.encoder(numbers, 99, 5, by)(0, x.numel(), message)
        written.append(message)
    assert torch.equal(*written)


def test_no_encoder_divides_by_zero_ranks() -> None:
    with pytest.raises(CodecError, match="1 to"):
        Scheme("uniform", 4, 512).encoder(torch.empty(0), ranks=0)


def test_magnitudes_in_bytes_are_those_of_the_numbers() -> None:
    numbers = torch.tensor([1.0, -3.0, 2.0, 9.0])
    message = torch.cat([torch.zeros(1, dtype=torch.uint8), numbers.view(torch.uint8)])
    for lying in (message[1:], message[1:].clone()):  # at any address
        assert shares.magnitude_in(lying, 3) == 3.0
        assert shares.magnitude_in(lying, 0) == 0.0
        with pytest.raises(WireError, match="5 numbers are 20 bytes"):
            shares.magnitude_in(lying, 5)
    for bad in (float("inf"), float("nan")):
        assert shares.magnitude_in(torch.tensor([1.0, bad]).view(torch.uint8), 2) == math.inf
