"""The rotation: orthonormal, its own inverse, the same for everyone, and good for heavy tails."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire import Codec, simulate
from thinwire.core.context import Context
from thinwire.core.spec import Spec
from thinwire.core.stage import Encoded
from thinwire.errors import CodecError
from thinwire.stages.hadamard import Hadamard, rotated


def numbers(numel: int, seed: int) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def there(stage: Hadamard, x: torch.Tensor, **ctx: int) -> torch.Tensor:
    return stage.encode(x, Context(Spec(x.numel()), {}, **ctx)).values  # type: ignore[arg-type]


@pytest.mark.parametrize("stage", [Hadamard(), Hadamard(chunk=2), Hadamard(chunk=64), Hadamard(chunk=16384)], ids=str)
@given(numel=st.sampled_from([0, 1, 2, 3, 63, 64, 65, 127, 1000, 4096, 4097, 10001]), seed=st.integers(0, 99))
@settings(max_examples=24, deadline=None)
def test_lengths_linearity_and_inverse(stage: Hadamard, numel: int, seed: int) -> None:
    a, b = numbers(numel, seed), numbers(numel, seed + 1000)
    y = there(stage, a)
    assert float(y.double().norm()) == pytest.approx(float(a.double().norm()), rel=1e-5)
    torch.testing.assert_close(there(stage, a - 3 * b), y - 3 * there(stage, b), rtol=0, atol=3e-5)
    out = b.clone()
    stage.decode(Encoded(y), Context(Spec(numel), {}), out, "add")
    torch.testing.assert_close(out, a + b, rtol=0, atol=1e-5)
    stage.decode(Encoded(y), Context(Spec(numel), {}), out, "subtract")
    torch.testing.assert_close(out, b, rtol=0, atol=1e-5)
    torch.testing.assert_close(y, there(stage, a))  # decoding leaves its input alone


@pytest.mark.parametrize("size", [1, 2, 64, 128, 1024])
def test_the_rotation_is_a_hadamard_matrix(size: int) -> None:
    matrix = rotated(torch.eye(size)) * size**0.5
    torch.testing.assert_close(matrix.abs(), torch.ones(size, size))
    torch.testing.assert_close(matrix @ matrix.T, size * torch.eye(size), rtol=0, atol=size * 1e-5)


def test_signs_depend_on_the_seed_and_on_nothing_else() -> None:
    x = numbers(300, 0)
    assert torch.equal(there(Hadamard(), x), there(Hadamard(), x, rank=2, ranks=3, step=9, stream=4))
    assert not torch.allclose(there(Hadamard(), x), there(Hadamard(seed=1), x))


def test_one_spike_is_spread_over_a_whole_ragged_tensor() -> None:
    for at in (0, 4095, 4999):
        spike = torch.zeros(5000)
        spike[at] = 1.0
        assert float(there(Hadamard(), spike).abs().max()) < 0.1


@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_end_alike_with_the_mean(ranks: int) -> None:
    gradients = [numbers(999, rank) for rank in range(ranks)]
    outcome = simulate("hadamard | qsgd(bits=8)", gradients)
    assert all(torch.equal(mean, outcome.means[0]) for mean in outcome.means)
    mean = torch.stack(gradients).mean(0)
    assert float((outcome.means[0] - mean).norm() / mean.norm()) < 0.03


def test_heavy_tails_are_quantised_with_less_error() -> None:
    x = torch.exp(2 * numbers(1 << 14, 1)) * numbers(1 << 14, 2).sign()
    plain = Codec.parse("qsgd(bits=4, bucket=4096)")
    rotating = Codec.parse("hadamard | qsgd(bits=4, bucket=4096)")
    errors = [float((codec.decode(codec.encode(x), x.numel()) - x).norm()) for codec in (plain, rotating)]
    assert errors[1] < errors[0] / 2


def test_it_may_stand_behind_the_cut() -> None:
    codec = Codec.parse("topk(density=0.5) | hadamard | qsgd(bits=8)")
    x = numbers(1000, 3)
    kept = Codec.parse("topk(density=0.5)")
    expected = kept.decode(kept.encode(x), 1000)
    torch.testing.assert_close(codec.decode(codec.encode(x, seed=3, step=2, rank=1), 1000), expected, rtol=0, atol=0.2)
    outcome = simulate(codec, [x, x])
    assert torch.equal(outcome.means[0], outcome.means[1])


def test_a_wrong_chunk_is_refused() -> None:
    with pytest.raises(CodecError, match="power of two; use 64"):
        Hadamard(chunk=100)
