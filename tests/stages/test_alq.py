"""Fitted levels: unbiased, never worse than before, equal on all ranks, and kept through a checkpoint."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire.core.codec import Codec
from thinwire.core.slot import Slot
from thinwire.errors import CodecError
from thinwire.stages.levels import ALQ, Distribution, fitted, histogram
from thinwire.stages.quantise import exponential_levels
from thinwire.worlds.simulated import simulate


def numbers(numel: int, seed: int) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def heavy(numel: int, seed: int, tail: float = 1.0) -> torch.Tensor:
    return torch.exp(tail * numbers(numel, seed)) * numbers(numel, seed + 5000).sign()


def uniform(numel: int, seed: int) -> torch.Tensor:
    return torch.rand(numel, generator=torch.Generator().manual_seed(seed)) * 2 - 1


@given(bits=st.integers(3, 7), seed=st.integers(0, 99), tail=st.floats(0, 3), norm=st.sampled_from(["max", "l2"]))
@settings(max_examples=20, deadline=None)
def test_a_fit_never_increases_the_error_nor_swaps_levels(bits: int, seed: int, tail: float, norm: str) -> None:
    weights = histogram(heavy(4096, seed, tail), 512, norm).tolist()  # type: ignore[arg-type]
    data, levels = Distribution(weights), exponential_levels(0.5, bits).tolist()
    for _ in range(2):
        better = fitted(weights, levels)
        assert data.variance(better) <= data.variance(levels)
        rounded = torch.tensor(better, dtype=torch.float32)
        assert rounded[0] == 0
        assert rounded[-1] == 1
        assert bool((rounded.diff() > 0).all())
        levels = better


def test_uniform_numbers_get_uniform_levels() -> None:
    weights = histogram(uniform(1 << 16, 0), 4096, "max").tolist()
    levels = torch.tensor(fitted(weights, exponential_levels(0.5, 4).tolist()))
    torch.testing.assert_close(levels, torch.arange(8) / 7, rtol=0, atol=0.01)


def test_the_expected_error_is_the_measured_one() -> None:
    x = heavy(1 << 15, 1)
    levels = exponential_levels(0.5, 4)
    scales = x.view(-1, 512).abs().amax(1)
    psi = Distribution(histogram(x, 512, "max").tolist()).variance(levels.tolist())
    counted = ((x.abs().view(-1, 512) < scales.view(-1, 1)).sum(1) * scales.square()).sum()
    errors = [simulate("nuqsgd(bits=4, norm=max)", [x], seed=seed).means[0] - x for seed in range(8)]
    measured = torch.stack([e.square().sum() for e in errors]).mean()
    assert float(measured) == pytest.approx(float(psi * counted), rel=0.02)


@pytest.mark.parametrize("numel", [1, 7, 100, 5000])
@pytest.mark.parametrize("value", [0.0, 1e-30, 1e30])
def test_flat_tiny_and_huge_numbers_make_no_nan(numel: int, value: float) -> None:
    outcome = simulate("alq(bits=3, start=0)", [torch.full((numel,), value), torch.zeros(numel)])
    assert torch.isfinite(outcome.means[0]).all()
    assert torch.isfinite(outcome.slots[0].states[0]["levels"]).all()


def test_it_is_unbiased_with_fitted_levels() -> None:
    x = torch.cat([heavy(512, 3), torch.zeros(128), torch.eye(1, 128).view(-1)])  # six buckets
    repeats = 1000
    draws = simulate("alq(bits=3, start=0, bucket=128)", [x.repeat(repeats)]).means[0].view(repeats, -1)
    spread = draws.std(0) / repeats**0.5
    sure = spread == 0
    z = ((draws.mean(0) - x) / spread)[~sure]
    assert float(z.abs().max()) < 5.5
    assert abs(float(z.mean())) < 0.15
    # so near to a level that no draw missed it
    torch.testing.assert_close(draws.mean(0)[sure], x[sure], rtol=0.01, atol=0)


@pytest.mark.parametrize("data", [numbers, heavy, uniform])
def test_fitted_levels_beat_the_fixed_ones(data: object) -> None:
    x = data(1 << 14, 7)  # type: ignore[operator]

    def error(chain: str) -> float:
        slots = simulate(chain, [x]).slots
        return float((simulate(chain, [x], slots=slots, step=1).means[0] - x).square().sum())

    fixed = min(error("qsgd(bits=4)"), error("nuqsgd(bits=4, norm=max)"), error("nuqsgd(bits=4)"))
    assert error("alq(bits=4, start=0)") < 1.03 * fixed


def test_it_fits_when_it_is_time_and_equally_everywhere() -> None:
    stage = ALQ(bits=3, start=2, every=25)
    assert [s for s in range(80) if stage.fits_at(s)] == [2, 20, 25, 50, 75]
    slots = [Slot() for _ in range(3)]
    for step in range(5):
        gradients = [heavy(2000, 10 * step + rank) for rank in range(3)]
        outcome = simulate(stage, gradients, slots=slots, step=step)
        assert all(torch.equal(mean, outcome.means[0]) for mean in outcome.means)
        levels = [slot.states[0]["levels"] for slot in slots]
        assert all(torch.equal(one, levels[0]) for one in levels)
        assert torch.equal(levels[0], exponential_levels(0.5, 3)) == (step < 2)


def test_bytes_between_fits_are_those_of_the_message() -> None:
    outcome = simulate("alq(bits=4, start=5)", [numbers(5000, rank) for rank in range(4)])
    plain = Codec.parse("qsgd(bits=4)").wire_bytes(5000, 4)
    assert outcome.sent == [plain] * 4
    assert Codec.parse("alq(bits=4)").wire_bytes(5000, 4) == pytest.approx(plain, abs=16)


def test_small_tensors_keep_their_levels() -> None:
    slots = simulate("alq(bits=4, start=0)", [numbers(20, 0)]).slots
    assert torch.equal(slots[0].states[0]["levels"], exponential_levels(0.5, 4))


def test_a_step_that_overflowed_leaves_no_trace() -> None:
    gradients = [heavy(3000, 0), heavy(3000, 1)]
    gradients[0][5] = float("inf")
    slots = simulate("alq(bits=4, start=0)", gradients).slots
    assert slots[1].states[0]["steps"] == 0
    assert torch.equal(slots[1].states[0]["levels"], exponential_levels(0.5, 4))


@pytest.mark.parametrize("chain", ["alq(start=2)", "topk(density=0.5) | alq(start=1)", "hadamard | alq(start=0)"])
def test_a_restored_slot_goes_on_bit_for_bit(chain: str) -> None:
    def run(slots: list[Slot], steps: range) -> list[torch.Tensor]:
        gradients = {step: [heavy(900, 9 * step), heavy(900, 9 * step + 1)] for step in steps}
        return [simulate(chain, gradients[step], slots=slots, step=step).means[0] for step in steps]

    slots = [Slot(), Slot()]
    run(slots, range(2))
    saved = [Slot.from_state_dict(slot.state_dict()) for slot in slots]
    assert all(torch.equal(a, b) for a, b in zip(run(slots, range(2, 5)), run(saved, range(2, 5)), strict=True))


def test_one_message_alone_is_refused() -> None:
    with pytest.raises(CodecError, match="agree first"):
        Codec.parse("alq(bits=4)").encode(numbers(10, 0))
    with pytest.raises(CodecError, match="from 3 to 8"):
        ALQ(bits=2)
