"""Numbers at the positions of a mask, summed while the rest of the result is made: it changes nothing but the time."""

from typing import Any

import pytest
import torch

from tests.contract.rows import gradients, weights
from thinwire import Codec, Slot, StepInfo, simulate
from thinwire.core.average import average
from thinwire.core.ops import AllReduce, Begin
from thinwire.core.reducers import pipelined
from thinwire.stages import importance
from thinwire.worlds.simulated import Outcome, _perform

ROWS = [
    "importance(density=1/16)",
    "importance(density=1/16, mask_nodes=1, momentum=0.9)",
    "importance(kappa=1.0, mask_nodes=3)",
    "feedback(keep=bf16) | importance(density=1/8)",
    "feedback(keep=off) | importance(density=1/8)",
]
SHAPE = (60, 50)


def three_steps(row: str, ranks: int, broken: int | None = None, reduction: str | None = None) -> list[Outcome]:
    """Outcomes of three steps, in one of which a rank has a gradient that is not finite."""
    outcomes: list[Outcome] = []
    for step in range(3):
        given = gradients(ranks, SHAPE, seed=step)
        if step == broken:
            given[-1][3, 4] = float("inf")
        slots = outcomes[-1].slots if outcomes else None
        outcomes.append(simulate(row, given, slots=slots, step=step, reduction=reduction, weights=weights(SHAPE)))
    return outcomes


def assert_same(found: list[Outcome], expected: list[Outcome]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        for mean, other in zip(mine.means, theirs.means, strict=True):
            assert torch.equal(mean.nan_to_num(7.0), other.nan_to_num(7.0))
            assert torch.equal(mean.isnan(), other.isnan())
    for slot, other_slot in zip(found[-1].slots, expected[-1].slots, strict=True):
        assert slot.steps == other_slot.steps
        assert (slot.residual is None) == (other_slot.residual is None)
        if slot.residual is not None and other_slot.residual is not None:
            assert torch.equal(slot.residual, other_slot.residual)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("broken", [None, 1, 2])
def test_overlapping_changes_nothing(row: str, ranks: int, broken: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    short = three_steps(row, ranks, broken)
    monkeypatch.setattr(importance, "_LONG", 1)
    one_part = three_steps(row, ranks, broken)
    assert_same(one_part, short)
    monkeypatch.setattr(pipelined, "ELEMENTS", 50)
    assert_same(three_steps(row, ranks, broken), short)


def test_a_ring_sums_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = three_steps(ROWS[0], 3)[-1].means[0]
    found = three_steps(ROWS[0], 3, reduction="ring")[-1].means[0]
    assert torch.allclose(found, expected, atol=1e-6)
    assert torch.equal(found == 0, expected == 0)


def test_finite_numbers_whose_sum_is_not_change_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importance, "_LONG", 1)
    given = [torch.full((40,), 3e38) for _ in range(4)]
    slots = [Slot() for _ in range(4)]
    # shares are a quarter of it, and so is what is held: their sum is too large
    for slot in slots:
        slot.residual = torch.full((40,), 2e38)
    outcome = simulate("importance(density=0.5)", given, slots=slots, weights=torch.ones(40))
    assert not outcome.means[0].isfinite().all()
    assert all(torch.equal(slot.residual, torch.full((40,), 2e38)) for slot in slots if slot.residual is not None)
    assert [slot.steps for slot in slots] == [0] * 4


@pytest.mark.parametrize(("numel", "begun"), [(importance._LONG - 1, 0), (importance._LONG, 2)])
def test_only_long_tensors_sum_by_themselves(numel: int, begun: int) -> None:
    """Short ones share their collective with others."""
    turn, codec = StepInfo(0, 1), Codec.parse("importance(density=1/64)")
    rounds = average(codec, torch.ones(numel), Slot(), turn, torch.ones(numel))
    asked: list[Any] = []
    reply: Any = None
    while True:
        try:
            asked.append(rounds.send(reply))
        except StopIteration:
            break
        (reply,) = _perform(asked[-1:])
    assert sum(isinstance(op, Begin) for op in asked) == begun
    assert sum(isinstance(op, AllReduce) for op in asked) == (0 if begun else 1)
