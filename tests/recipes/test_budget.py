"""A run by the clock: the schedule, the evaluations and the end follow the time of the first rank, on all ranks."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from thinwire.errors import StateError
from thinwire_lab.recipes import Images, Recipe, RecipeError, training
from thinwire_lab.recipes.budget import EVALUATIONS, StepBudget
from thinwire_lab.recipes.place import Clock
from thinwire_lab.recipes.recipe import learning_rate


class CountedClock(Clock):
    """A clock on which every step takes half a second and every evaluation, if it were counted, a hundred."""

    def __init__(self, device: torch.device, seconds: float = 0.0) -> None:
        super().__init__(device, seconds)
        self.seconds = seconds

    def read(self) -> float:
        return self.seconds

    @contextmanager
    def stopped(self) -> Iterator[None]:
        before, self.seconds = self.seconds, self.seconds + 100.0
        yield
        self.seconds = before


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch, small_images: Images) -> Any:
    take_step = training._Run.take_step

    def take_half_a_second(run: training._Run, *step: Any) -> torch.Tensor:
        assert isinstance(run.clock, CountedClock)
        loss = take_step(run, *step)
        run.clock.seconds += 0.5
        return loss

    monkeypatch.setattr(training, "Clock", CountedClock)
    monkeypatch.setattr(training._Run, "take_step", take_half_a_second)

    def run(recipe: Recipe, **options: Any) -> training.TrainedModel:
        return training.train(recipe, data=small_images, progress=False, device="cpu", **options)

    return run


def test_the_run_ends_with_the_step_in_which_the_time_runs_out(train: Any, small_recipe: Recipe) -> None:
    assert train(small_recipe, seconds=10.0).steps == 20
    late = train(small_recipe, seconds=9.9)
    assert (late.steps, late.seconds) == (20, 10.0)
    assert train(small_recipe, seconds=0.1).steps == 1


def test_the_learning_rate_follows_the_clock(train: Any, small_recipe: Recipe) -> None:
    recipe = replace(small_recipe, steps=100, warmup=10, log_every=1)
    rates = [record["lr"] for record in train(recipe, seconds=10.0).records]
    assert rates == pytest.approx([learning_rate(recipe, 5.0 * step) for step in range(20)])
    assert rates[0] < max(rates) == rates[2]
    assert rates[-1] < 0.02 * recipe.lr


def test_evaluations_come_at_equal_times_and_do_not_count(train: Any, small_recipe: Recipe) -> None:
    recipe = replace(small_recipe, log_every=1000, evaluate_every=1)  # which is for runs by steps
    records = train(recipe, seconds=10.0).records
    assert [record["time"] for record in records] == [1.0 * n for n in range(1, EVALUATIONS + 1)]
    assert all("test_accuracy" in record for record in records)
    few = train(recipe, seconds=1.5).records  # fewer steps than evaluations
    assert [record["step"] for record in few] == [1, 2, 3]


def test_a_resumed_run_has_the_time_that_is_left(train: Any, small_recipe: Recipe, tmp_path: Path) -> None:
    half = train(small_recipe, seconds=10.0, checkpoint=tmp_path, on_step=lambda done: done == 8)
    assert (half.steps, half.seconds) == (8, 4.0)
    whole = train(small_recipe, seconds=10.0, checkpoint=tmp_path, resume=tmp_path)
    assert (whole.steps, whole.seconds) == (20, 10.0)
    with pytest.raises(StateError, match="has trained for its 10 seconds; give more"):
        train(small_recipe, seconds=10.0, resume=tmp_path)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(train: Any, small_recipe: Recipe, seconds: float) -> None:
    with pytest.raises(RecipeError, match="must be a number greater than 0, not"):
        train(small_recipe, seconds=seconds)


def test_steps_are_counted_as_the_recipe_has_them() -> None:
    budget = StepBudget(Recipe(steps=7, evaluate_every=3), first=2)
    seen = []
    for done in range(3, 8):
        seen.append(budget.schedule_step)
        budget.count(done)
        assert budget.evaluates == (done in (3, 6, 7))
        assert budget.is_over == (done == 7)
    assert seen == [2, 3, 4, 5, 6]


JOB = """
import torch
from dataclasses import replace
from torch import distributed as dist
from thinwire_lab.recipes import Images, Recipe, joined_world, load_images, train, training

class SkewedClock(training.Clock):
    reads = 0
    def read(self):  # the second rank believes that the time is up at once
        self.reads += 1
        return self.reads * (1.0 if dist.get_rank() == 0 else 1000.0)

training.Clock = SkewedClock
torch.set_num_threads(1)
all = load_images()
data = Images(train_x=all.train_x[:64], train_y=all.train_y[:64],
              test_x=all.test_x[:40], test_y=all.test_y[:40], classes=all.classes)
with joined_world("cpu"):
    run = train(Recipe(batch=4, log_every=1000), seconds=12.0, data=data, progress=False, device="cpu")
    weights = torch.cat([p.detach().flatten() for p in run.model.parameters()])
    others = [torch.empty_like(weights) for _ in range(2)]
    dist.all_gather(others, weights)
    assert torch.equal(*others), "weights"
    steps = [None, None]
    dist.all_gather_object(steps, run.steps)
    assert steps[0] == steps[1] and steps[0] > 2, steps
print("equal", flush=True)
"""


@pytest.mark.distributed
@pytest.mark.timeout(120)
def test_ranks_whose_clocks_differ_stop_at_one_step_with_equal_weights(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run([*launch, str(script)], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("equal") == 2
