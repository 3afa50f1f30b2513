"""Schedules: pure, in bounds, monotone; and the guard that turns the dial."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinwire.core.codec import Codec
from thinwire.core.schedule import LossGuard, density_at, dial_for_rate
from thinwire.core.slot import Slot
from thinwire.errors import CodecError, StateError
from thinwire.worlds.simulated import simulate

DENSITIES = st.floats(1e-6, 1.0)


@given(DENSITIES, st.integers(0, 10**6), st.integers(0, 1000), st.none() | st.integers(1, 10**5), st.floats(0, 1))
def test_a_density_lies_between_its_target_and_one(
    density: float, step: int, warmup: int, decay: int | None, dial: float
) -> None:
    now = density_at(density, step, warmup, decay, dial)
    assert density <= now + 1e-12
    assert now <= 1.0
    assert now == density_at(density, step, warmup, decay, dial)


@given(DENSITIES, st.integers(1, 500))
def test_a_warm_up_falls_by_one_factor_to_the_target(density: float, warmup: int) -> None:
    course = [density_at(density, step, warmup) for step in range(warmup + 2)]
    factor = density ** (1 / (warmup + 1))
    assert course[0] == pytest.approx(factor)
    assert all(b == pytest.approx(a * factor) for a, b in pairwise(course[:-1]))
    assert course[warmup] == course[-1] == density


@given(DENSITIES, st.integers(1, 1000))
def test_a_decaying_theta_falls_as_one_over_the_root(density: float, decay: int) -> None:
    dropped = [1 - density_at(density, step, decay=decay) for step in (0, 3 * decay, 99 * decay)]
    assert dropped == pytest.approx([1 - density, (1 - density) / 2, (1 - density) / 10], abs=1e-9)


def test_the_dial_scales_what_is_dropped() -> None:
    assert density_at(0.2, 7, dial=0.5) == pytest.approx(0.6)
    assert density_at(0.2, 7, dial=0.0) == 1.0
    assert density_at(0.2, 7, dial=9.0) == 0.2
    assert dial_for_rate(0.01, 0.1) == pytest.approx(0.1)
    assert dial_for_rate(0.2, 0.1) == 1.0
    with pytest.raises(CodecError):
        dial_for_rate(0.1, 0.0)


@pytest.mark.parametrize("before", ["", "fft | ", "dct | "])
@pytest.mark.parametrize("name", ["topk", "sharedtopk"])
def test_stages_follow_their_schedule(before: str, name: str) -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    chain = f"{before}{name}(density=0.1, warmup=5)"
    kept = [float(simulate(chain, [x], step=step).means[0].norm()) for step in range(7)]
    assert kept == sorted(kept, reverse=True)
    assert kept[5] == kept[6] < kept[0]


def test_the_count_follows_the_dial_on_both_sides_of_the_wire() -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    for dial, kept in ((1.0, 100), (0.5, 550), (0.0, 1000)):
        slots = [Slot(dial=dial), Slot(dial=dial)]
        outcome = simulate("topk(density=0.1, dial=true)", [x, x], slots=slots, reduction="gathered")
        assert int((outcome.means[0] != 0).sum()) == kept
    assert int((simulate("topk(density=0.1)", [x], slots=[Slot(dial=0.0)]).means[0] != 0).sum()) == 100


def test_a_message_says_its_own_count() -> None:
    codec = Codec.parse("topk(density=0.1, warmup=9) | qsgd(bits=8)")
    x = torch.randn(500, generator=torch.Generator().manual_seed(0))
    for step in (0, 4, 20):
        decoded = codec.decode(codec.encode(x, step=step), 500)
        assert int((decoded != 0).sum()) <= math.ceil(500 * density_at(0.1, step, 9))
    assert codec.encode(x, step=0).numel() > codec.encode(x, step=20).numel()


def test_sizes_before_data_are_those_after_the_warm_up() -> None:
    chains = ("topk(density=0.01)", "topk(density=0.01, warmup=50)")
    plain, warmed = (Codec.parse(chain).wire_bytes(5000, 4) for chain in chains)
    assert warmed == pytest.approx(plain, abs=40)


# The guard.


def course(guard: LossGuard, losses: list[float]) -> list[float]:
    return [guard.feed(loss) for loss in losses]


def noisy(level: float, steps: int, seed: int = 0) -> list[float]:
    noise = torch.randn(steps, generator=torch.Generator().manual_seed(seed)) * 0.1
    return [level * (1 + n) for n in noise.tolist()]


def test_a_falling_or_noisy_loss_leaves_the_dial_alone() -> None:
    falling = [2.0 * 0.999**t * (1 + 0.1 * math.sin(t)) for t in range(2000)]
    assert set(course(LossGuard(), falling)) == {1.0}
    assert set(course(LossGuard(), noisy(1.0, 3000))) == {1.0}


def test_a_rising_loss_halves_theta_then_drops_nothing_then_recovers() -> None:
    guard = LossGuard(window=10, recovery=40)
    assert set(course(guard, noisy(1.0, 50))) == {1.0}
    dials = course(guard, noisy(3.0, 60, seed=1))
    assert sorted(set(dials), reverse=True)[:3] == [1.0, 0.5, 0.25]
    assert dials[-1] == 0.0
    assert dials == sorted(dials, reverse=True)
    after = course(guard, noisy(0.9, 600, seed=2))
    assert after[-1] == 1.0
    assert after == sorted(after)


def test_a_loss_that_is_not_finite_backs_off_at_once() -> None:
    guard = LossGuard()
    assert course(guard, [1.0, float("nan")]) == [1.0, 0.5]
    assert math.isfinite(guard.smooth)


def test_a_restored_guard_goes_on_alike() -> None:
    losses = noisy(1.0, 60) + noisy(4.0, 60, seed=3)
    guard = LossGuard(window=10)
    course(guard, losses[:80])
    other = LossGuard.from_state_dict(guard.state_dict())
    assert course(guard, losses[80:]) == course(other, losses[80:])
    with pytest.raises(StateError):
        LossGuard.from_state_dict({"dial": 1.0})
    wrong = {"dial": 7, "smooth": float("nan"), "seen": -1, "window": 0, "cut": "x", "lowest": None, "more": 1}
    for name, value in wrong.items():
        with pytest.raises(StateError, match="not the saved state of a LossGuard"):
            LossGuard.from_state_dict({**guard.state_dict(), name: value})
    with pytest.raises(StateError, match="must be a mapping"):
        LossGuard.from_state_dict(3)  # type: ignore[arg-type]
    with pytest.raises(CodecError, match="cut"):
        LossGuard(cut=1.0)
