"""Batches of an epoch share the examples out; the learning rate is a function of the step."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinwire_lab.recipes import Batches, Recipe, RecipeError, learning_rate
from thinwire_lab.recipes.data import ImagePart


def numbered(count: int) -> ImagePart:
    return ImagePart(torch.zeros(count, 1, 1, 1), torch.arange(count))


@given(count=st.integers(1, 200), batch=st.integers(1, 16), ranks=st.integers(1, 5), seed=st.integers(0, 9))
def test_the_batches_of_an_epoch_do_not_overlap(count: int, batch: int, ranks: int, seed: int) -> None:
    if count < batch * ranks:
        with pytest.raises(RecipeError, match="too few"):
            Batches(numbered(count), batch=batch, seed=seed, rank=0, ranks=ranks)
        return
    each = [Batches(numbered(count), batch=batch, seed=seed, rank=rank, ranks=ranks) for rank in range(ranks)]
    steps = each[0].steps_per_epoch
    seen = [example for batches in each for step in range(steps) for example in batches.at(step)[1].tolist()]
    assert len(seen) == len(set(seen)) == steps * batch * ranks


def test_a_batch_depends_on_seed_and_step_but_not_on_the_past() -> None:
    def batches(seed: int = 1) -> Batches:
        return Batches(numbered(64), batch=8, seed=seed, rank=1, ranks=2)

    walked = batches()
    history = [walked.at(step)[1] for step in range(10)]
    assert torch.equal(history[9], batches().at(9)[1])
    assert not torch.equal(history[0], history[4])  # the same place in two epochs
    assert not torch.equal(history[0], batches(seed=2).at(0)[1])


def test_schedules_warm_up_then_fall() -> None:
    rates = {
        kind: [learning_rate(Recipe(schedule=kind, steps=100, warmup=10, lr=1.0), step) for step in range(100)]
        for kind in ("cosine", "step", "constant")
    }
    for values in rates.values():
        assert values[0] == pytest.approx(0.1)
        assert values[9] == values[10] == 1.0
        assert all(a >= b for a, b in pairwise(values[9:]))
    assert rates["cosine"][55] == pytest.approx(0.5)
    assert rates["cosine"][99] < 0.001
    assert rates["step"][54:56] == [1.0, 0.1]
    assert rates["step"][99] == pytest.approx(0.01)
    assert rates["constant"][99] == 1.0


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"model": "vg"}, "known models"),
        ({"batch": 0}, "batch must be at least 1, not 0"),
        ({"schedule": "linear"}, "schedule is one of cosine, step, constant"),
    ],
)
def test_a_recipe_that_cannot_work_is_refused(wrong: dict[str, object], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        Recipe(**wrong)  # type: ignore[arg-type]
