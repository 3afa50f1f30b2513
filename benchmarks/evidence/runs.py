"""One simulated training: its test figure at several steps, and the bytes that were sent until then."""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.evidence.adam import AdamVariant, Variant
from benchmarks.evidence.tasks import TASKS, Line, Task
from thinwire import Plan, __version__
from thinwire_lab.recipes.compressed import CompressedAverage
from thinwire_lab.recipes.data import Data, Images
from thinwire_lab.recipes.evaluation import evaluate
from thinwire_lab.recipes.outer import OuterSimulation
from thinwire_lab.recipes.recipe import Recipe, load_data
from thinwire_lab.recipes.simulated import Gradients, Simulation, mean
from thinwire_lab.report.jsonl import build, read_lines, to_line

WRITER = "python -m benchmarks.evidence"


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished training; `curve` has (step, bytes sent by a rank until then, test figure)."""

    task: str
    codec: str
    seed: int
    steps: int
    ratio: float
    curve: list[list[float]]
    chain: str | None = None  # what was run, with the defaults of that time
    thinwire: str | None = None  # the version, and the commit
    torch: str | None = None
    date: str | None = None

    @property
    def final(self) -> float:
        return self.curve[-1][2]


def evaluation_steps(steps: int) -> list[int]:
    """Where the test figure is taken: early steps too, since an uncompressed run has few for equal bytes."""
    shares = (1 / 64, 1 / 32, 1 / 24, 1 / 16, 1 / 12, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 3 / 4, 1)
    return sorted({max(1, round(share * steps)) for share in shares})


def data_of(task: Task, source: str) -> tuple[Task, Data]:
    """The task with its data; images of some tasks are made smaller by means of squares of pixels."""
    task = replace(task, recipe=replace(task.recipe, data=source))
    data = load_data(task.recipe)
    if task.pool > 1 and isinstance(data, Images):
        train, test = (F.avg_pool2d(x, task.pool) for x in (data.train_x, data.test_x))
        data = replace(data, train_x=train, test_x=test)
    return task, data


def train(task: Task, text: str, seed: int, steps: int, data: Data) -> Run:
    """Train once, and evaluate on the way; where the chain has momentum, SGD has none."""
    line = task.lines[text]
    warmup = min(task.recipe.warmup, max(1, steps // 4))
    recipe = replace(task.recipe, seed=seed, steps=steps, warmup=warmup, lr=line.lr * task.recipe.lr)
    trained = (
        _rounds(task, line, text, recipe, data) if line.outer is not None else _steps(task, line, text, recipe, data)
    )
    curve, looked_at, sent = [], evaluation_steps(steps), 0
    for step, (model_of, sent) in enumerate(trained, 1):
        if step in looked_at:
            result = evaluate(model := model_of(), data.test, limit=recipe.test_limit)
            figure = result.accuracy if task.figure == "accuracy" else result.loss
            curve.append([float(step), float(sent), figure])
    numel = sum(p.numel() for p in model.parameters())
    plain = 8 * (task.ranks - 1) * -(-numel // task.ranks) * steps  # bytes of an fp32 all-reduce in every step
    ratio = plain / sent if sent else 1.0
    return Run(task=task.key, codec=text, seed=seed, steps=steps, ratio=ratio, curve=curve, **provenance(task, text))


def provenance(task: Task, text: str) -> dict[str, str | None]:
    """What a later reader needs to know whether this still is what a user gets."""
    return {
        "chain": chain_of(task, text),
        "thinwire": f"{__version__}{f' ({commit})' if (commit := commit_of(Path(__file__).parent)) else ''}",
        "torch": torch.__version__,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
    }


def chain_of(task: Task, text: str) -> str | None:
    """The plan, outer steps and optimizer of a line, presets written out; None: the task has no such line any more."""
    line = task.lines.get(text)
    if line is None:
        return None
    exchanged = Plan.parse(line.plan or text) if line.outer is None else line.outer
    rate = f", learning rate x {line.lr:g}" if line.lr != 1.0 else ""
    return f"{exchanged}{f', {line.adam}' if line.adam is not None else ''}{rate}"


def commit_of(folder: Path) -> str | None:
    """The commit that is checked out, with a + where files differ from it; None outside of a clone."""
    git = ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _steps(
    task: Task, line: Line, text: str, recipe: Recipe, data: Data
) -> Iterator[tuple[Callable[[], nn.Module], int]]:
    """The model and the bytes sent after each step with an exchange of gradients."""
    plan = Plan.parse(line.plan or text)
    average = CompressedAverage(plan, task.ranks, recipe.seed)
    simulation = Simulation(recipe, task.ranks, data, plan)
    if line.adam is not None:
        simulation.optimizer = adam_variant(line.adam, recipe, simulation.model)
    for step in range(recipe.steps):
        gradients, _ = simulation.gradients(step)
        if isinstance(simulation.optimizer, AdamVariant) and simulation.optimizer.variant.dense:
            simulation.optimizer.dense = _clipped_mean(gradients, recipe.clip)
        simulation.apply(step, average(gradients, simulation.weights))
        yield lambda: simulation.model, average.sent


def _rounds(
    task: Task, line: Line, text: str, recipe: Recipe, data: Data
) -> Iterator[tuple[Callable[[], nn.Module], int]]:
    """The weights on which the ranks agreed last, and the bytes sent, after each inner step."""
    assert line.outer is not None
    simulation = OuterSimulation(recipe, task.ranks, line.outer, data)
    for _ in range(recipe.steps):
        simulation.train_step()
        yield simulation.common, simulation.average.sent


def adam_variant(variant: Variant, recipe: Recipe, model: nn.Module) -> AdamVariant:
    return AdamVariant(model.parameters(), variant, lr=recipe.lr, weight_decay=recipe.weight_decay)


def _clipped_mean(gradients: Sequence[Gradients], limit: float) -> list[torch.Tensor]:
    """The uncompressed mean gradient, clipped as the compressed one is."""
    means = list(mean(gradients, gradients[0]).values())
    norm = float(torch.stack([m.norm() for m in means]).norm())
    return [m * min(1.0, limit / (norm + 1e-6)) if limit else m for m in means]


def read_runs(path: Path) -> list[Run]:
    """The runs in a file; none if there is no file. Of equal ones the last counts, which was made to replace others."""
    runs = [build(Run, given) for _, given in read_lines(path, WRITER)] if path.exists() else []
    return list({(run.task, run.codec, run.seed, run.steps): run for run in runs}.values())


def add_run(path: Path, run: Run) -> None:
    """Append a run, so that nothing is lost when the command is stopped."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(to_line(run.__dict__).rstrip("\n") + "\n")


def is_stale(run: Run) -> bool:
    """Whether what its name stands for has changed since; false where a run does not say its chain."""
    return run.chain is not None and run.task in TASKS and run.chain != chain_of(TASKS[run.task], run.codec)


def age(runs: Sequence[Run]) -> str:
    """A word on runs whose codec stands for another chain now, or of which that is not known."""
    if any(is_stale(run) for run in runs):
        return "made with other defaults"
    return "" if all(run.chain for run in runs) else "made with unknown defaults"


def is_done(runs: Sequence[Run], task: str, codec: str, seed: int, steps: int) -> bool:
    """Whether the file has this run, and says that it was made with the chain that the codec stands for today."""
    mine = [r for r in runs if (r.task, r.codec, r.seed, r.steps) == (task, codec, seed, steps)]
    return any(run.chain is not None and not is_stale(run) for run in mine)
