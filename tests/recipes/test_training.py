"""The loop alone and on two ranks: resuming changes no bit, records are complete, ranks end equal."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from thinwire.errors import StateError
from thinwire_lab.recipes import Images, Recipe, TrainedModel, read_records, train
from thinwire_lab.recipes.checkpoints import save_checkpoint


class Scaling:
    """A stand-in for a compressor with state: scales gradients by a factor that shrinks with every backward pass."""

    def __init__(self, model: nn.Module) -> None:
        self.factor = torch.ones(1)
        last = list(model.parameters())[-1]
        last.register_hook(self.scale)

    def scale(self, gradient: torch.Tensor) -> torch.Tensor:
        self.factor *= 0.9
        return gradient * self.factor

    def state_dict(self) -> dict[str, Any]:
        return {"factor": self.factor.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.factor.copy_(state["factor"])

    def metrics(self) -> dict[str, object]:
        return {"factor": self.factor.item()}


def equal_weights(one: TrainedModel, two: TrainedModel) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_three_steps_and_three_resumed_are_six(
    tmp_path: Path, small_images: Images, small_recipe: Recipe, optimizer: Any
) -> None:
    recipe = replace(small_recipe, optimizer=optimizer, log_every=1)
    metrics, folder = tmp_path / "metrics.jsonl", tmp_path / "state"
    six = train(recipe, prepare=Scaling, data=small_images, progress=False)
    three = train(
        recipe,
        prepare=Scaling,
        data=small_images,
        progress=False,
        checkpoint=folder,
        metrics=metrics,
        on_step=lambda done: done == 3,
    )
    assert three.steps == 3
    assert not equal_weights(six, three)
    resumed = train(
        recipe, prepare=Scaling, data=small_images, progress=False, checkpoint=folder, metrics=metrics, resume=folder
    )
    assert equal_weights(six, resumed)
    assert resumed.accuracy == six.accuracy
    records = read_records(metrics)
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert [record["loss"] for record in records] == [record["loss"] for record in six.records]
    times = [float(str(record["time"])) for record in records]
    assert times == sorted(times)
    assert [file.name for file in folder.iterdir()] == ["step6.rank0.pt"]


def test_records_hold_figures_of_time_of_the_compressor_and_of_the_test(
    tmp_path: Path, small_images: Images, small_recipe: Recipe
) -> None:
    path = tmp_path / "deep" / "metrics.jsonl"
    recipe = replace(small_recipe, steps=7, evaluate_every=3)
    result = train(recipe, prepare=Scaling, data=small_images, metrics=path, progress=False)
    records = read_records(path)
    assert records == result.records
    assert [record["step"] for record in records] == [2, 3, 4, 6, 7]
    assert ["test_accuracy" in record for record in records] == [False, True, False, True, True]
    assert all({"loss", "time", "step_time", "samples_per_s", "lr", "factor"} <= record.keys() for record in records)
    assert records[-1]["test_accuracy"] == result.accuracy


def test_a_line_cut_short_by_a_crash_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert read_records(tmp_path / "metrics.jsonl") == [{"step": 1}, {"step": 2}]


def test_training_learns_also_in_low_precision(small_images: Images, small_recipe: Recipe) -> None:
    recipe = replace(small_recipe, steps=60, clip=5.0)
    plain, low = (train(replace(recipe, amp=amp), data=small_images, progress=False) for amp in (False, True))
    assert plain.accuracy > 0.9
    assert low.accuracy > 0.9
    assert not equal_weights(plain, low)


def test_resuming_something_else_is_refused(tmp_path: Path, small_images: Images, small_recipe: Recipe) -> None:
    def resume(recipe: Recipe, **options: Any) -> None:
        train(recipe, data=small_images, progress=False, resume=tmp_path, **options)

    with pytest.raises(StateError, match=r"no checkpoint to resume in .*looked for step<N>\.rank0\.pt"):
        resume(small_recipe)
    train(small_recipe, prepare=Scaling, data=small_images, progress=False, checkpoint=tmp_path)
    with pytest.raises(StateError, match="has done its 6 steps"):
        resume(small_recipe, prepare=Scaling)
    with pytest.raises(StateError, match=r"another recipe \(lr=0.02 there, 0.5 here\)"):
        resume(replace(small_recipe, lr=0.5, steps=8))
    with pytest.raises(StateError, match="holds a compressor's state"):
        resume(replace(small_recipe, steps=8))
    (tmp_path / "step6.rank0.pt").write_bytes(b"cut short")
    with pytest.raises(StateError, match="not a readable checkpoint"):
        resume(replace(small_recipe, steps=8))
    others: list[Any] = [{"model": {}}, torch.zeros(2)]
    for foreign in others:
        torch.save(foreign, tmp_path / "step6.rank0.pt")
        with pytest.raises(StateError, match="is not a checkpoint of a recipe"):
            resume(replace(small_recipe, steps=8))


def test_a_failed_write_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, {"extra": {}})
    with pytest.raises(Exception, match="pickle"):
        save_checkpoint(tmp_path, 2, {"extra": lambda: None})
    assert (tmp_path / "step1.rank0.pt").exists()
    assert not (tmp_path / "step2.rank0.pt").exists()


JOB = """
import sys
import torch
from pathlib import Path
from thinwire_lab.recipes import Images, Recipe, joined_world, load_images, mean, train, train_simulated

torch.set_num_threads(1)
recipe = Recipe(batch=4, steps=4, warmup=1, log_every=2)
folder = Path(sys.argv[1])
all = load_images()
data = Images(train_x=all.train_x[:64], train_y=all.train_y[:64],
              test_x=all.test_x[:41], test_y=all.test_y[:41], classes=all.classes)
options = dict(data=data, progress=False, checkpoint=folder / "state")
with joined_world("cpu"):
    four = train(recipe, data=data, progress=False, device="cpu", metrics=folder / "metrics.jsonl")
    train(recipe, **options, device="cpu", on_step=lambda done: done == 2)
    resumed = train(recipe, **options, device="cpu", resume=folder / "state")
simulated = train_simulated(recipe, 2, mean, data=data)
for a, b, c in zip(four.model.parameters(), resumed.model.parameters(), simulated.model.parameters()):
    assert torch.equal(a, b), "resumed"
    torch.testing.assert_close(a, c, rtol=1e-4, atol=1e-5)
assert abs(four.accuracy - simulated.accuracy) < 0.03
print("equal", flush=True)
"""


@pytest.mark.distributed
@pytest.mark.timeout(150)
def test_two_ranks_under_torchrun_equal_their_simulation(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run([*launch, str(script), str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("equal") == 2
    assert [record["step"] for record in read_records(tmp_path / "metrics.jsonl")] == [2, 4]
    assert sorted(file.name for file in (tmp_path / "state").iterdir()) == ["step4.rank0.pt", "step4.rank1.pt"]
