"""The training loop, and an example of how to write one: read `train` from top to bottom.

It runs as it is in one process, and data-parallel under torchrun with Gloo or NCCL. What compresses the gradients is
attached by `prepare`; the loop only keeps its state in checkpoints and its figures in the metrics. A job that trains
more than once does so inside one `joined_world()`, because torchrun lets a process join only once.
"""

import itertools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from thinwire import Plan, StepMetrics
from thinwire.errors import StateError
from thinwire_lab.recipes.budget import Budget, StepBudget, TimeBudget
from thinwire_lab.recipes.checkpoints import load_checkpoint, save_checkpoint
from thinwire_lab.recipes.data import Data, Part
from thinwire_lab.recipes.evaluation import Evaluation, evaluate
from thinwire_lab.recipes.place import Clock, Place, joined_world
from thinwire_lab.recipes.recipe import (
    Batches,
    Recipe,
    fresh_model,
    learning_rate,
    load_data,
    loss_of,
    make_optimizer,
    set_learning_rate,
)
from thinwire_lab.recipes.records import Record, Recorder

MAY_CHANGE_ON_RESUME = ("steps", "log_every", "evaluate_every", "test_limit")


PrepareOuter = Callable[[nn.Module, torch.optim.Optimizer, torch.amp.GradScaler], object]


@runtime_checkable
class Stateful(Protocol):
    """What `prepare` may return to have its state kept in checkpoints: dicts of tensors, numbers and strings."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> object: ...


@runtime_checkable
class Measured(Protocol):
    """What `prepare` may return to have its figures added to every record: a handle, or something like it."""

    def metrics(self) -> StepMetrics | Mapping[str, object] | None: ...


@runtime_checkable
class Rounds(Protocol):
    """What outer steps do around an evaluation: between rounds, every rank has weights of its own."""

    def synchronize(self) -> object: ...

    def agreed(self) -> AbstractContextManager[None]: ...


@dataclass(frozen=True)
class TrainedModel:
    """The result of a run, equal on all ranks apart from the figures of time."""

    model: nn.Module
    steps: int
    accuracy: float
    test_loss: float
    seconds: float  # of training: evaluation and checkpoints are not counted
    records: list[Record]


def train(
    recipe: Recipe,
    *,
    seconds: float | None = None,
    prepare: Callable[[nn.Module], object] | None = None,
    prepare_outer: PrepareOuter | None = None,
    on_step: Callable[[int], bool | None] | None = None,
    on_record: Callable[[Record], None] | None = None,
    data: Data | None = None,
    metrics: str | Path | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 0,
    resume: str | Path | None = None,
    device: str | None = None,
    progress: bool = True,
    ddp_options: Mapping[str, Any] | None = None,
    plan: Plan | None = None,
) -> TrainedModel:
    """Trains the recipe on all ranks of this job: its steps, or as many as fit into `seconds` of training.

    `prepare(model)` may attach a compressor; the model is a DistributedDataParallel if there are several ranks.
    `prepare_outer(model, optimizer, scaler)` attaches outer steps to the plain model, in place of
    DistributedDataParallel; then evaluations are of the weights that the ranks agreed on last, and a last round comes
    before the end.
    `on_step(steps done)` ends the run by returning True, on all ranks at the same step. `on_record` gets every record.
    `checkpoint` is a folder written every `checkpoint_every` steps and at the end; `resume` one to go on from.
    `ddp_options` go to DistributedDataParallel as they are. `plan` is what `prepare` attaches: where its chains carry
    momentum, the optimiser has none.
    """
    with joined_world(device) as place:
        data = data if data is not None else load_data(recipe)
        batches = Batches(data.train, batch=recipe.batch, seed=recipe.seed, rank=place.rank, ranks=place.ranks)
        run = _Run(recipe, fresh_model(recipe, data), place, prepare, prepare_outer, ddp_options or {}, plan)
        first = run.restore(Path(resume)) if resume is not None else 0
        budget = run.budget(first, seconds)
        with run.recorder(metrics, first, budget.total_steps, progress) as recorder:
            for step in itertools.count(first):
                loss = run.take_step(budget.schedule_step, *batches.at(step))
                done = step + 1
                budget.count(done)
                last = (on_step is not None and on_step(done) is True) or budget.is_over
                if last and isinstance(run.compressor, Rounds):
                    run.compressor.synchronize()
                result = run.evaluate(data.test) if last or budget.evaluates else None
                log = result is not None or _is_due(done, recipe.log_every)
                record = run.record(done, loss, result) if log else None
                recorder.advance(done, record)
                if record is not None and on_record is not None:
                    on_record(record)
                if checkpoint is not None and (last or _is_due(done, checkpoint_every)):
                    run.save(Path(checkpoint), done)
                if last:
                    break
    assert result is not None  # the last step is evaluated, and budget() refuses a run without steps
    return TrainedModel(run.model, done, result.accuracy, result.loss, run.clock.read(), run.records)


def _is_due(done: int, every: int) -> bool:
    return every > 0 and done % every == 0


class _Run:
    """Everything that changes while training: weights, optimiser, gradient scaler, compressor, clock."""

    def __init__(
        self,
        recipe: Recipe,
        model: nn.Module,
        place: Place,
        prepare: Callable[[nn.Module], object] | None,
        prepare_outer: PrepareOuter | None,
        ddp_options: Mapping[str, Any],
        plan: Plan | None,
    ) -> None:
        torch.manual_seed(recipe.seed + place.rank)  # for whatever else draws; weights and batches have their own
        self.recipe, self.place = recipe, place
        self.model = model.to(place.device)
        alone = place.ranks == 1 or prepare_outer is not None
        self.parallel = self.model if alone else DistributedDataParallel(self.model, **ddp_options)
        self.compressor = prepare(self.parallel) if prepare is not None else None
        # One rank alone sends nothing, so no chain is there to have the momentum.
        self.optimizer = make_optimizer(recipe, self.model, plan if place.ranks > 1 else None)
        kind = place.device.type  # float16 needs its loss scaled, bfloat16 has the range of float32
        self.precision = torch.float16 if kind == "cuda" else torch.bfloat16
        self.scaler = torch.amp.GradScaler(kind, enabled=recipe.amp and kind == "cuda")
        if prepare_outer is not None and place.ranks > 1:
            self.compressor = prepare_outer(self.model, self.optimizer, self.scaler)
        self.clock = Clock(place.device)
        self.lr = recipe.lr
        self.records: list[Record] = []
        self.logged = (0, 0.0)  # step and time of the last record

    def budget(self, first: int, seconds: float | None) -> Budget:
        """What is left to do of a run that has done `first` steps; refused if that is nothing."""
        if seconds is None:
            if first >= self.recipe.steps:
                raise StateError(f"the run has done its {first} steps; give more than {first} to go on.")
            return StepBudget(self.recipe, first)
        # steps between outer steps send nothing, and must not wait for a clock either
        every = self.recipe.log_every if isinstance(self.compressor, Rounds) else 1
        budget = TimeBudget(self.recipe, seconds, self.clock, self.place, every)
        if budget.is_over:
            raise StateError(f"the run has trained for its {seconds:g} seconds; give more than {seconds:g} to go on.")
        return budget

    def recorder(self, metrics: str | Path | None, first: int, steps: int | None, progress: bool) -> Recorder:
        """The file of metrics and the bar on the first rank, nothing on the others."""
        here = self.place.rank == 0
        path = Path(metrics) if metrics is not None and here else None
        return Recorder(path, steps=steps, start=first, title=self.recipe.model, bar=progress and here)

    def take_step(self, schedule_step: float, x: Tensor, y: Tensor) -> Tensor:
        """Forward, backward (in which DistributedDataParallel averages the gradients), update; returns the loss."""
        self.lr = learning_rate(self.recipe, schedule_step)
        set_learning_rate(self.optimizer, self.lr)
        with torch.autocast(self.place.device.type, self.precision, enabled=self.recipe.amp):
            loss = loss_of(self.parallel, x.to(self.place.device), y.to(self.place.device))
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        if self.recipe.clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss

    def evaluate(self, part: Part) -> Evaluation:
        agreed = self.compressor.agreed() if isinstance(self.compressor, Rounds) else nullcontext()
        with self.clock.stopped(), agreed:
            limit = self.recipe.test_limit
            return evaluate(self.model, part, limit=limit, rank=self.place.rank, ranks=self.place.ranks)

    def record(self, done: int, loss: Tensor, result: Evaluation | None) -> Record:
        """The figures since the last record, with those of the compressor and of the test if there are any."""
        step, seconds = self.logged
        now = self.clock.read()
        self.logged = (done, now)
        each = (now - seconds) / (done - step)
        samples = self.recipe.batch * self.place.ranks
        last = self.compressor.metrics() if isinstance(self.compressor, Measured) else None
        record: Record = last.to_dict() if isinstance(last, StepMetrics) else dict(last or {})
        record |= {"step": done, "loss": self.place.mean(loss), "time": now, "step_time": each}
        record |= {"samples_per_s": samples / each, "lr": self.lr}
        if result is not None:
            record |= {"test_loss": result.loss, "test_accuracy": result.accuracy}
        self.records.append(record)
        return record

    def save(self, folder: Path, done: int) -> None:
        seconds = self.clock.read()
        with self.clock.stopped():
            state = {
                "recipe": asdict(self.recipe),
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scaler": self.scaler.state_dict(),
                "random": torch.get_rng_state(),
                "seconds": seconds,
                "extra": self.compressor.state_dict() if isinstance(self.compressor, Stateful) else {},
            }
            save_checkpoint(folder, done, state, rank=self.place.rank, ranks=self.place.ranks)

    def restore(self, folder: Path) -> int:
        """Takes over the newest checkpoint in the folder and returns the number of steps it has done."""
        state = load_checkpoint(folder, rank=self.place.rank, ranks=self.place.ranks)
        done: int = state["step"]
        ours = asdict(self.recipe)
        differing = [n for n in ours if n not in MAY_CHANGE_ON_RESUME and ours[n] != state["recipe"].get(n)]
        if differing:
            values = ", ".join(f"{n}={state['recipe'].get(n)!r} there, {ours[n]!r} here" for n in differing)
            raise StateError(f"the checkpoint in {folder} belongs to another recipe ({values}); resume with its own.")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if isinstance(self.compressor, Stateful):  # outer steps compare the model with their own state
            self.compressor.load_state_dict(state["extra"])
        elif state["extra"]:
            raise StateError(f"the checkpoint in {folder} holds a compressor's state; attach the same one to resume.")
        self.scaler.load_state_dict(state["scaler"])
        torch.set_rng_state(state["random"])
        self.clock = Clock(self.place.device, state["seconds"])
        self.logged = (done, state["seconds"])
        return done
