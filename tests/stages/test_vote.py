"""Laws of the majority vote."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from thinwire.core.codec import Codec
from thinwire.errors import WireError
from thinwire.worlds.simulated import simulate


def drawn(ranks: int, numel: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(numel, generator=generator) * 10.0**rank for rank in range(ranks)]


@settings(max_examples=60, deadline=None)
@given(numel=st.integers(1, 120), ranks=st.integers(1, 7), seed=st.integers(0, 10**6))
def test_the_result_has_the_sign_of_the_majority(numel: int, ranks: int, seed: int) -> None:
    """Whatever the magnitudes: one rank's gradient is a million times another's."""
    gradients = drawn(ranks, numel, seed)
    outcome = simulate("signsgd", gradients, step=seed)
    votes = torch.stack(gradients).sign().sum(0)
    mean = outcome.means[0]
    assert all(torch.equal(other, mean) for other in outcome.means)
    decided = votes != 0
    assert torch.equal(mean.sign()[decided], votes.sign()[decided])


def test_ties_are_broken_at_random() -> None:
    """20000 fair coins: 5 deviations of 71."""
    mean = simulate("signsgd", [torch.ones(40000), torch.tensor([1.0, -1.0]).repeat(20000)]).means[0]
    assert bool((mean[::2] > 0).all())
    assert abs(int((mean[1::2] > 0).sum()) - 10000) < 5 * 71


def test_a_message_of_ties_only_is_zero() -> None:
    mean = simulate("signsgd", [torch.ones(99), -torch.ones(99)]).means[0]
    assert torch.equal(mean, torch.zeros(99))


def test_sizes_are_one_bit_up_and_one_bit_down() -> None:
    codec = Codec.parse("signsgd")
    for numel, ranks in ((1000, 4), (7, 3), (1, 2)):
        size = codec.wire_bytes(numel, ranks)
        assert size.exact
        assert simulate(codec, drawn(ranks, numel, 0)).sent == [size] * ranks
    assert codec.wire_bytes(80_000, 4) == 2 * 3 * (4 + 20_000 // 8) + 2 * 3 * 4


def test_gathered_ballots_give_their_mean() -> None:
    gradients = [torch.tensor([1.0, 1.0]), torch.tensor([1.0, -1.0]), torch.tensor([1.0, -1.0])]
    mean = simulate("signsgd", gradients, reduction="gathered").means[0]
    torch.testing.assert_close(mean, torch.tensor([1.0, -1 / 3]), atol=1e-3, rtol=0)


@pytest.mark.parametrize("reduction", ["sharded", "gathered", "ring"])
def test_feedback_holds_what_the_signs_do_not_say(reduction: str) -> None:
    slots, total, delivered = None, torch.zeros(60), torch.zeros(60)
    for step in range(10):
        gradients = [g * 10.0**-r for r, g in enumerate(drawn(3, 60, step))]
        outcome = simulate("signsgd(feedback=true)", gradients, slots=slots, step=step, reduction=reduction)
        slots = outcome.slots
        total += torch.stack(gradients).mean(0)
        delivered += outcome.means[0]
    assert slots is not None
    held = sum(s.residual for s in slots if s.residual is not None)
    torch.testing.assert_close(delivered + held, total, atol=1e-4, rtol=1e-4)


def test_without_feedback_nothing_is_kept() -> None:
    assert all(slot.residual is None for slot in simulate("signsgd", drawn(3, 20, 0)).slots)


def test_zero_gives_zero() -> None:
    assert torch.equal(simulate("signsgd", [torch.zeros(9)] * 3).means[0], torch.zeros(9))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_bad_number_reaches_every_rank(bad: float) -> None:
    gradients = drawn(3, 20, 0)
    gradients[1][4] = bad
    assert not any(bool(torch.isfinite(mean).any()) for mean in simulate("signsgd", gradients).means)


def test_a_truncated_message_is_refused() -> None:
    codec = Codec.parse("vote")
    message = codec.encode(torch.randn(30))
    assert message.numel() == 4 + 4
    for length in (0, 3, 7):
        with pytest.raises(WireError):
            codec.decode(message[:length], 30)
