"""Checkpoints of earlier versions load, and training continues as if this version had written them."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import thinwire
from tests.ddp.cases import case
from tests.golden.checkpoint_runs import FLAT, MATRIX, RUNS, STEPS, attached, averages, fixed
from thinwire.errors import StateError

OLD = Path(__file__).parent.parent / "golden" / "checkpoints-0.1.0.pt"
POWERSGD = "powersgd(rank=4)"
GRADIVEQ = next(plan for plan in RUNS if plan.startswith("gradiveq"))
ROUNDED = ("gradiveq", "powersgd", "fftsgd")  # their eigenvectors, products and transforms depend on the processor
LATER = range(STEPS, STEPS + 4)


def saved(plan: str) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(OLD, weights_only=True)[plan]
    return state


def resumed(plan: str, state: dict[str, Any]) -> tuple[DistributedDataParallel, thinwire.Handle]:
    model, handle = attached(plan)
    handle.load_state_dict(state)
    return model, handle


@case(2)
def checkpoints_of_0_1_0_continue(rank: int, ranks: int, folder: Path) -> None:
    for plan in RUNS:
        model, handle = attached(plan)
        averages(model, rank, range(STEPS))
        expected = averages(model, rank, LATER)
        other, old = resumed(plan, saved(plan))
        assert old.step == STEPS
        found = averages(other, rank, LATER)
        for mean, wanted in zip(found, expected, strict=True):
            if plan.startswith(ROUNDED):
                assert (mean - wanted).norm() < 0.02 * wanted.norm(), plan
            else:
                assert torch.equal(mean, wanted), plan
        for each in (handle, old):
            each.close()


@case(2, 3)
def nothing_that_0_1_0_owed_is_lost(rank: int, ranks: int, folder: Path) -> None:
    """What is given after loading and what was owed before is delivered, or owed again; among 3 ranks, too."""
    for plan in (GRADIVEQ, "feedback(keep=bf16) | topk(density=0.1)", "fftsgd(chunk=256)", POWERSGD):
        state = saved(plan)
        model, handle = resumed(plan, state)
        owed = total(handle, 0)
        whole = [residual_of(plan, state[f"rank{old}"]["weights.0"]) for old in range(2)]
        torch.testing.assert_close(owed, whole[0] + whole[1], rtol=1e-2 if "bf16" in plan else 1e-4, atol=1e-3)
        delivered = sum(averages(model, rank, LATER)[:: len(RUNS[plan])], torch.zeros(32, 32)).view(-1)
        given = given_to(ranks, LATER)
        slack = 0.2 if "bf16" in plan else 1e-3
        torch.testing.assert_close(delivered + total(handle, 0), owed + given, rtol=0, atol=slack)
        handle.close()


@case(2, 3)
def what_0_1_0_owed_for_a_matrix_that_is_sent_as_it_is_now_is_delivered(rank: int, ranks: int, folder: Path) -> None:
    state = saved(POWERSGD)
    for old in range(2):
        state[f"rank{old}"]["weights.1"]["residual"] = torch.full((1024,), 3.0)
    model, handle = resumed(POWERSGD, state)
    assert not handle.plan[1].codec.stages
    first, second = averages(model, rank, range(STEPS, STEPS + 2))[1::2]
    torch.testing.assert_close(first, given_to(ranks, range(STEPS, STEPS + 1), 1).view(2, 512) + 6.0)
    torch.testing.assert_close(second, given_to(ranks, range(STEPS + 1, STEPS + 2), 1).view(2, 512))
    handle.close()


@case(2)
def ranks_that_do_not_owe_alike_are_refused(rank: int, ranks: int, folder: Path) -> None:
    """A residual without a codec has a collective of its own, which all ranks must enter."""
    state = saved(POWERSGD)
    del state["rank1"]["weights.1"]["residual"]
    state["rank1"]["weights.1"]["keys"] = "states.0.steps"
    _, handle = attached(POWERSGD)
    with pytest.raises(StateError, match=r"disagree on the state of a parameter.*weights\.1"):
        handle.load_state_dict(state)
    assert not handle.engine.slots
    handle.close()


def residual_of(plan: str, slot: dict[str, Any]) -> Tensor:
    """In the gradient's own space, as this version's slots say it."""
    restored = thinwire.Slot(slot["chain"], tuple(slot["shape"]), [], slot["residual"], 1, in_sum_space=slot["behind"])
    assert restored.residual is not None
    return restored.residual.float()


def given_to(ranks: int, steps: range, at: int = 0) -> Tensor:
    """The sum of all steps' means of what the ranks give for a parameter."""
    shape = (MATRIX, FLAT)[at]
    return sum((fixed(shape, s, r, at) / ranks for s in steps for r in range(ranks)), torch.zeros(shape)).view(-1)


def total(handle: thinwire.Handle, at: int) -> Tensor:
    """What all ranks together still owe of a parameter."""
    residual = handle.engine.slots[f"weights.{at}"].residual
    assert residual is not None
    summed = residual.float().clone()
    dist.all_reduce(summed)
    return summed
