"""Laws of random-k."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from thinwire.core.codec import Codec
from thinwire.core.slot import Slot
from thinwire.stages.randomk import random_positions
from thinwire.worlds.simulated import simulate

CPU = torch.device("cpu")


def drawn(ranks: int, numel: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(numel, generator=generator) for _ in range(ranks)]


@settings(max_examples=200, deadline=None)
@given(numel=st.integers(1, 5000), share=st.floats(0, 1), key=st.integers(0, 2**64 - 1))
def test_positions_are_distinct_and_inside(numel: int, share: float, key: int) -> None:
    count = int(share * numel)
    positions = random_positions(key, numel, count, CPU)
    assert positions.unique().numel() == count
    assert count == 0 or 0 <= int(positions.min()) <= int(positions.max()) < numel


def test_every_position_is_equally_likely() -> None:
    """Each count is binomial(3000, 5/13), deviation 27; 13 counts within 5 of those: error probability 1e-5."""
    counts = torch.zeros(13)
    for key in range(3000):
        counts[random_positions(key * 0x9E3779B97F4A7C15 % 2**64, 13, 5, CPU)] += 1
    assert bool(((counts - 3000 * 5 / 13).abs() < 5 * 27).all())


@settings(max_examples=40, deadline=None)
@given(
    numel=st.integers(1, 200),
    ranks=st.integers(1, 4),
    density=st.sampled_from([0.01, 0.3, 1.0]),
    step=st.integers(0, 99),
)
def test_result_is_the_dense_mean_at_the_sample_and_sizes_are_exact(
    numel: int, ranks: int, density: float, step: int
) -> None:
    codec, gradients = Codec.parse(f"randomk(density={density})"), drawn(ranks, numel, step)
    outcome = simulate(codec, gradients, step=step)
    total = gradients[0] / ranks
    for gradient in gradients[1:]:
        total = total + gradient / ranks
    for mean in outcome.means:
        chosen = mean != 0
        assert torch.equal(mean[chosen], total[chosen])
        assert torch.equal(mean, outcome.means[0])
    size = codec.wire_bytes(numel, ranks)
    assert size.exact
    assert outcome.sent == [size] * ranks


def test_what_is_given_is_delivered_or_held() -> None:
    slots, total, delivered = None, torch.zeros(90), torch.zeros(90)
    for step in range(30):
        gradients = drawn(2, 90, step)
        outcome = simulate("randomk(density=0.1)", gradients, slots=slots, step=step)
        slots = outcome.slots
        total += torch.stack(gradients).mean(0)
        delivered += outcome.means[0]
    assert slots is not None
    held = sum(s.residual for s in slots if s.residual is not None)
    torch.testing.assert_close(delivered + held, total, atol=1e-4, rtol=1e-4)


def test_scaled_is_unbiased_and_keeps_nothing() -> None:
    """The mean of 800 draws deviates by sqrt((n/k - 1) / 800) of each number; 5 deviations of 50 numbers: 3e-5."""
    gradient, total = drawn(1, 50, 3)[0], torch.zeros(50)
    for step in range(800):
        outcome = simulate("randomk(density=0.2, scaled=true)", [gradient], step=step)
        total += outcome.means[0]
    assert outcome.slots[0].residual is None
    assert bool(((total / 800 - gradient).abs() <= 5 * (4 / 800) ** 0.5 * gradient.abs()).all())


def test_a_bad_number_reaches_every_rank() -> None:
    gradients = drawn(3, 400, 0)
    gradients[2][123] = float("inf")
    outcome = simulate("randomk(density=0.01)", gradients)
    assert not any(bool(torch.isfinite(mean).all()) for mean in outcome.means)
    assert all(slot.residual is None for slot in outcome.slots)


def test_saved_state_continues_bit_for_bit() -> None:
    slots = simulate("randomk(density=0.1)", drawn(2, 70, 0)).slots
    saved = [Slot.from_state_dict(slot.state_dict()) for slot in slots]
    straight = simulate("randomk(density=0.1)", drawn(2, 70, 1), slots=slots, step=1)
    resumed = simulate("randomk(density=0.1)", drawn(2, 70, 1), slots=saved, step=1)
    assert torch.equal(straight.means[0], resumed.means[0])


@pytest.mark.parametrize("tail", ["qsgd(bits=4)", "integers(bits=8)", "fp16"])
def test_the_sample_can_travel_in_fewer_bits(tail: str) -> None:
    outcome = simulate(f"randomk(density=0.25) | {tail}", drawn(3, 301, 0))
    assert all(torch.equal(mean, outcome.means[0]) for mean in outcome.means)
