"""Real FFTs of rows: the bits of the reference everywhere, and the laws of the transform."""

import math
import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.numbers import any_bits, same
from thinwire.errors import CodecError
from thinwire.kernels import spectra
from thinwire.kernels.reference import spectra as reference
from thinwire.kernels.reference.fourier import roots

pytestmark = pytest.mark.usefixtures("variant")

LENGTHS = [2**k for k in range(1, 17)]
KINDS = ["plain", "wide", "any"]
CPU = torch.device("cpu")


def made(kind: str, count: int, length: int, seed: int = 0) -> Tensor:
    """Numbers of ordinary magnitudes, of all that cannot overflow, or of every kind of bits, zeros of both signs."""
    if kind == "any":
        return any_bits(count * length, seed).view(count, length)
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, length, generator=g)
    if kind == "wide":
        x = torch.ldexp(x, torch.randint(-140, 90, (count, length), generator=g))
    return torch.where(torch.rand(count, length, generator=g) < 0.1, x * 0.0, x)


def there(x: Tensor, owed: Tensor | None = None) -> Tensor:
    spectra.pairs_of_rows(x, owed, out := torch.full_like(x, 7.0))
    return out


def back(y: Tensor) -> Tensor:
    spectra.rows_of_pairs(y, out := torch.full_like(y, 7.0))
    return out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", LENGTHS)
def test_compiled_equals_reference(length: int, kind: str) -> None:
    for count in (0, 1, 2, 5) if length <= 4096 else (1,):
        x, owed, theirs = made(kind, count, length), made(kind, count, length, 1), torch.empty(count, length)
        reference.pairs_of_rows(x, None, theirs)
        assert same(there(x), theirs)
        reference.pairs_of_rows(x, owed, theirs)
        assert same(there(x, owed), theirs)
        reference.rows_of_pairs(x, theirs)
        assert same(back(x), theirs)


@pytest.mark.parametrize("length", LENGTHS)
def test_the_numbers_are_those_of_a_longer_arithmetic(length: int) -> None:
    x = made("plain", 3, length)
    bins = torch.fft.rfft(x.double(), norm="ortho")
    pairs = torch.view_as_real(bins)[:, :-1] * math.sqrt(2.0)
    pairs[:, 0, 0], pairs[:, 0, 1] = bins[:, 0].real, bins[:, -1].real
    assert float((there(x) - pairs.view_as(x)).norm() / x.norm()) < 2.5e-7
    exact = torch.fft.irfft(bins, n=length, norm="ortho")
    assert float((back(pairs.view_as(x).float()) - exact).norm() / x.norm()) < 2.5e-7


@given(st.sampled_from(LENGTHS[:13]), st.integers(1, 4), st.integers(-60, 60), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_norms_stay_the_way_back_leads_back_and_factors_pass_through(n: int, count: int, shift: int, seed: int) -> None:
    x = torch.randn(count, n, generator=torch.Generator().manual_seed(seed))
    y = there(x)
    torch.testing.assert_close(y.double().norm(dim=1), x.double().norm(dim=1), rtol=1e-6, atol=0)
    torch.testing.assert_close(back(y), x, rtol=0, atol=4e-6)
    torch.testing.assert_close(there(back(x)), x, rtol=0, atol=4e-6)
    assert same(there(x * 2.0**shift), y * 2.0**shift)
    assert same(there(x[:1]), y[:1])  # whatever lies around a row


def test_bits_are_the_same_on_every_machine() -> None:
    x = torch.tensor([((i * 7919) % 1021 - 510) / 64 for i in range(2 * 4096)]).view(2, 4096)
    y = there(x)
    sums = [zlib.crc32(t.numpy().tobytes()) for t in (roots(1 << 16, CPU), y, back(y))]
    assert sums == [1868642546, 3621520215, 3667325100]


def test_roots_are_rounded_sines() -> None:
    angle = torch.arange(4096, dtype=torch.float64) * (-2 * math.pi / 16384)
    re, im = roots(16384, CPU)[-8192:].view(2, 4096)
    torch.testing.assert_close(re.double(), angle.cos(), rtol=0, atol=2**-25)
    torch.testing.assert_close(im.double(), angle.sin(), rtol=0, atol=2**-25)
    assert re[0] == 1.0
    assert im[0] == 0.0
    assert re[2048] == -im[2048] == torch.tensor(math.sqrt(0.5))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("length", [2, 8, 64, 4096])
def test_one_number_that_is_not_finite_spoils_its_row_only(length: int, bad: float) -> None:
    for at in {0, 1, length // 2, length - 1}:
        x = made("plain", 3, length)
        x[1, at] = bad
        spectrum, numbers = there(x).isfinite(), back(x).isfinite()
        assert not spectrum[1].view(-1, 2).all(1).any()  # of a pair, one number may know nothing of it
        assert not numbers[1].all()
        assert spectrum[[0, 2]].all()
        assert numbers[[0, 2]].all()


def test_memory_may_be_anywhere_and_the_same() -> None:
    x, owed = made("plain", 3, 2049, 1)[:, :2048], made("plain", 3, 2048, 2)
    expected = there(x.contiguous(), owed)
    assert same(there(x, owed), expected)  # not contiguous: the reference
    shifted = torch.empty(3 * 2048 + 1)[1:].view(3, 2048)
    spectra.pairs_of_rows(shifted.copy_(x), owed, shifted)
    assert same(shifted, expected)
    spectra.pairs_of_rows(x.contiguous(), owed, owed)
    assert same(owed, expected)
    spectra.rows_of_pairs(shifted, shifted)
    assert same(shifted, back(expected))


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 1000])
@pytest.mark.parametrize("length", [2, 64, 4096])
def test_rows_are_divided_first(length: int, ranks: int) -> None:
    for kind in KINDS:
        x, owed = made(kind, 3, length), made(kind, 3, length, 1)
        spectra.pairs_of_rows(x, owed, ours := torch.empty_like(x), ranks)
        assert same(ours, there(x / ranks, owed))


def test_what_does_not_fit_is_refused() -> None:
    x = torch.zeros(2, 8)
    for wrong in (torch.zeros(2, 6), torch.zeros(2, 1), torch.zeros(2, 0), torch.zeros(8), x.double()):
        with pytest.raises(CodecError, match="power of two and at least 2"):
            spectra.pairs_of_rows(wrong, None, wrong)
    with pytest.raises(CodecError, match="alike"):
        spectra.rows_of_pairs(x, torch.zeros(2, 6))
    with pytest.raises(CodecError, match="over 1 to"):
        spectra.pairs_of_rows(x, None, torch.zeros(2, 8), 0)
    with pytest.raises(CodecError, match="owed"):
        spectra.pairs_of_rows(x, torch.zeros(2, 6), torch.zeros(2, 8))
