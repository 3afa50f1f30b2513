"""Laws of the transforms: orthonormal, linear, exactly invertible, and the bound on what dropping frequencies costs."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire import Codec, simulate
from thinwire.core.context import Context
from thinwire.core.spec import Spec
from thinwire.core.stage import Encoded
from thinwire.errors import CodecError, WireError
from thinwire.kernels.modes import Mode
from thinwire.stages.fourier import DCT, FFT, Chunked
from thinwire.stages.sparsify import TopK, magnitudes

TRANSFORMS = [FFT(chunk=64), DCT(chunk=64), FFT(), DCT()]
SIZES = st.sampled_from([0, 1, 2, 3, 5, 63, 64, 65, 127, 128, 131, 1000, 4096, 5001])


def numbers(numel: int, seed: int) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def there(stage: Chunked, x: torch.Tensor) -> torch.Tensor:
    return stage.encode(x, Context(Spec(x.numel()), {})).values


def back(stage: Chunked, y: torch.Tensor, out: torch.Tensor, mode: Mode = "write") -> torch.Tensor:
    stage.decode(Encoded(y), Context(Spec(out.numel()), {}), out, mode)
    return out


@pytest.mark.parametrize("stage", TRANSFORMS, ids=str)
@given(numel=SIZES, seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_parseval_linearity_and_inverse(stage: Chunked, numel: int, seed: int) -> None:
    a, b = numbers(numel, seed), numbers(numel, seed + 1000)
    y = there(stage, a)
    assert y.numel() == stage.out(Spec(numel)).numel
    assert float(y.double().norm()) == pytest.approx(float(a.double().norm()), rel=1e-6)
    torch.testing.assert_close(there(stage, 2 * a - b), 2 * y - there(stage, b), rtol=0, atol=2e-5)
    torch.testing.assert_close(back(stage, y, torch.full((numel,), 7.0)), a, rtol=0, atol=3e-6)
    torch.testing.assert_close(back(stage, y, b.clone(), "add"), a + b, rtol=0, atol=3e-6)
    torch.testing.assert_close(back(stage, y, b.clone(), "subtract"), b - a, rtol=0, atol=3e-6)


def test_a_chunk_of_the_fft_is_its_bins_in_order() -> None:
    x = numbers(16, 0)
    bins = torch.fft.rfft(x, norm="ortho")
    expected = torch.stack([bins[:-1].real, bins[:-1].imag], 1) * math.sqrt(2)
    expected[0] = torch.tensor([bins[0].real, bins[-1].real])
    torch.testing.assert_close(there(FFT(chunk=16), x), expected.view(-1))


def dct_matrix(numel: int) -> torch.Tensor:
    k, j = torch.arange(numel).view(-1, 1), torch.arange(numel)
    matrix = torch.cos(math.pi * k * (2 * j + 1) / (2 * numel)) * math.sqrt(2 / numel)
    matrix[0] *= math.sqrt(0.5)
    return matrix


@pytest.mark.parametrize("numel", [1, 2, 4, 16])
def test_the_dct_is_its_definition(numel: int) -> None:
    x = numbers(numel, 1)
    torch.testing.assert_close(there(DCT(chunk=16), x), dct_matrix(numel) @ x, rtol=0, atol=1e-5)


@pytest.mark.parametrize("stage", [FFT(chunk=64), DCT(chunk=64)], ids=str)
def test_a_rest_is_cut_into_powers_of_two(stage: Chunked) -> None:
    x = numbers(64 + 32 + 8 + 2, 2)
    parts = [there(stage, part) for part in torch.split(x, [64, 32, 8, 2])]
    assert torch.equal(there(stage, x), torch.cat(parts))
    odd = torch.cat([x[:64], x[:1]])
    last = torch.tensor([x[0], 0.0]) if isinstance(stage, FFT) else x[:1]
    assert torch.equal(there(stage, odd), torch.cat([there(stage, x[:64]), there(stage, last)]))


@given(numel=st.integers(2, 3000), theta=st.floats(0.0, 0.99), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_the_error_is_the_dropped_energy_and_at_most_theta(numel: int, theta: float, seed: int) -> None:
    x = numbers(numel, seed)
    stage, topk = FFT(chunk=256), TopK(density=max(1 - theta, 1e-9))
    energies = magnitudes(there(stage, x), 2).square().sort(descending=True).values
    kept = topk.kept(energies.numel())
    delivered = (stage | topk).decode((stage | topk).encode(x), numel)
    error = float((x - delivered).square().sum() / x.square().sum())
    # The odd number at the end of a tensor is filled up with a zero, whose own error is not seen.
    dropped = float(energies[kept:].sum() / energies.sum())
    assert error == pytest.approx(dropped, abs=1e-5) if numel % 2 == 0 else error <= dropped + 1e-5
    assert error <= theta + 1e-5


def test_the_error_falls_as_theta_does() -> None:
    x = [numbers(5000, 3)]
    errors = [
        float((simulate(f"fftsgd(theta={t}, transform=always)", x).means[0] - x[0]).norm())
        for t in (0.95, 0.85, 0.5, 0.1, 0.0)
    ]
    assert errors == sorted(errors, reverse=True)


def test_theta_zero_gives_the_gradient_back_to_the_rounding_of_its_floats() -> None:
    x = numbers(5001, 4)
    delivered = simulate("fft | topk(density=1.0, dial=true) | rangefloat(bits=16, mantissa=11)", [x]).means[0]
    assert float((delivered - x).norm() / x.norm()) < 1e-3
    plain = simulate("fft | topk(density=1.0)", [x]).means[0]
    torch.testing.assert_close(plain, x, rtol=0, atol=3e-6)


@pytest.mark.parametrize("stage", TRANSFORMS, ids=str)
def test_one_inverse_of_the_sum_is_the_sum_of_inverses(stage: Chunked) -> None:
    parts = [numbers(777, seed) for seed in range(4)]
    spectra = [there(stage, part) for part in parts]
    total = back(stage, torch.stack(spectra).sum(0), torch.empty(777))
    torch.testing.assert_close(
        total, torch.stack([back(stage, y, torch.empty(777)) for y in spectra]).sum(0), rtol=0, atol=1e-5
    )


def test_a_pure_tone_needs_one_pair() -> None:
    x = torch.sin(2 * math.pi * 5 * torch.arange(4096) / 4096)
    torch.testing.assert_close(simulate("fft | topk(density=0.0004)", [x]).means[0], x, rtol=0, atol=1e-5)


@pytest.mark.parametrize("chain", ["fftsgd(transform=always)", "dct | topk(density=0.1)", "fft | threshold(value=0.4)"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("reduction", ["sharded", "gathered", "ring"])
def test_all_ranks_end_alike_and_nothing_is_lost(chain: str, ranks: int, reduction: str) -> None:
    gradients = [numbers(1001, rank) for rank in range(ranks)]
    slots, delivered = None, torch.zeros(1001)
    for step in range(4):
        outcome = simulate(chain, gradients, slots=slots, step=step, reduction=reduction)
        assert all(torch.equal(mean, outcome.means[0]) for mean in outcome.means)
        slots, delivered = outcome.slots, delivered + outcome.means[0]
    held = torch.stack([slot.residual for slot in slots or [] if slot.residual is not None]).sum(0)
    torch.testing.assert_close(delivered + held, 4 * torch.stack(gradients).mean(0), rtol=0, atol=2e-5)


def test_the_bytes_are_the_papers() -> None:
    """n ((1 - theta) N + entropy of a bit for each pair) / 8, headers and lengths aside."""
    numel, theta, bits = 1 << 16, 0.85, 10
    message = Codec.parse(f"fftsgd(theta={theta}, bits={bits}, transform=always)").encode(numbers(numel, 5)).numel()
    with_bitmap = numel * ((1 - theta) * bits + 0.5) / 8
    entropy = -(theta * math.log2(theta) + (1 - theta) * math.log2(1 - theta))
    with_entropy = numel * ((1 - theta) * bits + 0.5 * entropy) / 8
    assert with_entropy < message < with_entropy * 1.03 < with_bitmap
    assert Codec.parse("fftsgd(transform=always)").wire_bytes(numel, 4, "gathered") == pytest.approx(
        3 * message, rel=0.02
    )


def test_pairs_of_tiny_and_huge_numbers_are_told_apart() -> None:
    for unit in (1e-38, 1e-25, 1.0, 1e25, 1e38):
        pairs = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0], [0.1, 0.1]]) * unit
        assert magnitudes(pairs.view(-1), 2).argsort(descending=True).tolist() == [1, 2, 0, 3]


def test_a_nan_reaches_everyone() -> None:
    gradients = [numbers(500, 0), numbers(500, 1)]
    gradients[1][17] = float("nan")
    outcome = simulate("fftsgd(transform=always)", gradients)
    assert all(not torch.isfinite(mean).all() for mean in outcome.means)
    assert outcome.slots[0].steps == 0


def test_a_truncated_message_is_refused() -> None:
    codec = Codec.parse("fftsgd(transform=always)")
    message = codec.encode(numbers(300, 0))
    for length in (0, 3, 9, message.numel() - 1):
        with pytest.raises(WireError):
            codec.decode(message[:length], 300)


def test_wrong_options_are_refused_with_the_rule() -> None:
    with pytest.raises(CodecError, match="power of two; use 2048"):
        FFT(chunk=3000)
    with pytest.raises(CodecError, match="theta"):
        Codec.parse("fftsgd(theta=1.0)")


def test_the_preset_prints_as_its_chain() -> None:
    codec = Codec.parse("fftsgd(theta=0.9, bits=8, chunk=1024, transform=always)")
    assert str(codec) == "fft(chunk=1024) | topk(density=0.1, dial=true) | rangefloat(bits=8)"
    assert Codec.parse(str(codec)) == codec
