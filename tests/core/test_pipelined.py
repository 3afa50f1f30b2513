"""Sums in parts: nothing but the time of the work depends on how a tensor is cut, and on when its numbers are made."""

import copy
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.rows import gradients, simulate
from tests.contract.test_contract import same
from thinwire import Codec, Slot, StepInfo
from thinwire.core.average import average
from thinwire.core.reducers.pipelined import ELEMENTS, part_bounds
from thinwire.stages.pca_basis import Slices
from thinwire.worlds.simulated import Outcome, run

PCA = "pca(ratio=4, warmup=0, sample=2, reuse=9, slice=12)"
SHAPE = (61, 24)


def averaged(codec: str, steps: int, ranks: int = 3, size: float = 1.0) -> Outcome:
    outcome = simulate(codec, [size * g for g in gradients(ranks, SHAPE)])
    for step in range(1, steps):
        shares = [size * g for g in gradients(ranks, SHAPE, seed=step)]
        outcome = simulate(codec, shares, slots=outcome.slots, step=step)
    return outcome


@given(count=st.integers(1, 2_000_000), length=st.integers(1, 64))
def test_parts_follow_each_other_and_are_neither_short_nor_long(count: int, length: int) -> None:
    bounds = part_bounds(count, length)
    assert bounds[0][0] == 0
    assert bounds[-1][1] == count
    assert all(a[1] == b[0] for a, b in pairwise(bounds))
    if len(bounds) > 1:
        assert all(ELEMENTS - length <= (high - low) * length <= 2 * ELEMENTS for low, high in bounds)


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thinwire.core.reducers.pipelined.ELEMENTS", 32)


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", [0, -1])
def test_a_non_finite_number_in_any_part_changes_no_state(poison: float, where: int) -> None:
    before = averaged(PCA, 4)
    states = [copy.deepcopy(slot.state_dict()) for slot in before.slots]
    spoilt = gradients(3, SHAPE, seed=9)
    spoilt[1].view(-1)[where] = poison
    after = simulate(PCA, spoilt, slots=before.slots, step=4)
    assert not any(torch.isfinite(mean).all() for mean in after.means)
    assert all(same(slot.state_dict(), state) for slot, state in zip(after.slots, states, strict=True))


def watch_certainty(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    certain: list[bool] = []
    known = Slices.certain

    def noted(self: Slices, largest: float) -> bool:
        certain.append(known(self, largest))
        return certain[-1]

    monkeypatch.setattr(Slices, "certain", noted)
    return certain


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("size", [1.0, 1e30])
def test_residuals_are_the_same_whenever_they_are_booked(size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    certain = watch_certainty(monkeypatch)
    early = averaged(PCA, 5, size=size)
    assert certain
    assert all(certain)
    monkeypatch.setattr(Slices, "certain", lambda self, largest: False)
    late = averaged(PCA, 5, size=size)
    for a, b in zip(early.slots, late.slots, strict=True):
        assert a.residual is not None
        assert same(a.state_dict(), b.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(early.means, late.means, strict=True))


@pytest.mark.parametrize("before", ["momentum(beta=0.5)", "feedback(keep=off)", "feedback(keep=bf16)"])
def test_parts_of_longer_chains_are_those_of_the_whole(before: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = averaged(f"{before} | {PCA}", 5)
    monkeypatch.setattr("thinwire.core.reducers.pipelined.ELEMENTS", 32)
    certain = watch_certainty(monkeypatch)
    cut = averaged(f"{before} | {PCA}", 5)
    assert certain
    assert all(certain)
    for a, b in zip(whole.slots, cut.slots, strict=True):
        assert (a.residual is None) == (b.residual is None)
        if a.residual is not None and b.residual is not None:
            torch.testing.assert_close(a.residual, b.residual, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(whole.means, cut.means, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("cut")
def test_numbers_near_the_largest_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    certain = watch_certainty(monkeypatch)
    outcome = averaged(PCA, 4, size=1e37)
    assert certain
    assert not any(certain)
    assert torch.isfinite(outcome.means[0]).all()
    assert outcome.slots[0].steps == 4


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(
    "codec",
    [
        "sign",
        "topk(density=0.1)",
        "topk(density=0.1) | rangefloat(bits=8)",
        "rangefloat(bits=8)",
        "feedback | qsgd(bits=4)",
        "feedback | qsgd(bits=4) | huffman",
        "feedback(keep=bf16) | nuqsgd(bits=4)",
        "fft | topk(density=0.2)",
        "integers(bits=8)",
        PCA,
    ],
)
def test_numbers_made_late_are_the_same(codec: str, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean is written over the gradient, which must not happen to numbers that are still wanted."""
    chain, outcomes = Codec.parse(codec), []
    reduction = "sharded" if chain.coders else None
    for worth in (1 << 16, 1):
        for long in (1 << 30, 1):
            monkeypatch.setattr("thinwire.core.source._WORTH_SPLITTING", worth)
            monkeypatch.setattr("thinwire.core.reducers.sharded.LONG", long)
            slots = [Slot() for _ in range(ranks)]
            for step in range(4):
                shares = gradients(ranks, SHAPE, seed=step)
                turns = [StepInfo(rank, ranks, 0, step, reduction) for rank in range(ranks)]
                run(
                    [average(chain, g, slot, turn, None, g) for g, slot, turn in zip(shares, slots, turns, strict=True)]
                )
            outcomes.append((shares, [slot.state_dict() for slot in slots]))
    for means, states in outcomes[1:]:
        assert all(torch.equal(a, b) for a, b in zip(outcomes[0][0], means, strict=True))
        assert same(outcomes[0][1], states)
