"""What a comparison runs on every host: `python -m thinwire_lab.compare.worker <job as JSON>`.

One process group trains the trials of a job one after the other, because a launch costs as much as many steps. The
first rank tells on its standard output what happened, a line a message (see `Message`). A trial that fails ends the
process: what state a broken collective leaves behind is nobody's guess, so the launcher starts anew with the rest.
"""

import json
import os
import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from thinwire_lab.compare.contenders import Attached, Compressor, Contender, parse_contender
from thinwire_lab.compare.outer import LOGGED_EVERY
from thinwire_lab.compare.traffic import Traffic
from thinwire_lab.recipes import Data, Recipe, joined_world, load_data, train
from thinwire_lab.report.jsonl import parse
from thinwire_lab.report.record import Decision, Eval, Layers, Record, RecordError, Step, Summary, from_dict, to_line

MARK = "@thinwire "
_FROM_BACKWARD = re.compile(r"Unable to cast (.*) to Tensor")  # what DDP makes of an error in a hook
PATIENCE = timedelta(minutes=10)  # with a peer that does not answer


@dataclass(frozen=True)
class Trial:
    """One contender with one seed."""

    run: str
    contender: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a group of workers trains."""

    recipe: Recipe
    trials: Sequence[Trial]
    seconds: float | None = None  # of training for each trial, in place of the recipe's steps
    target: float | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "Job":
        given = json.loads(text)
        return Job(
            recipe=Recipe(**given["recipe"]),
            trials=[Trial(**trial) for trial in given["trials"]],
            seconds=given["seconds"],
            target=given["target"],
        )


@dataclass(frozen=True)
class Message:
    """Begins with what happened: `begin`, `record` or `failed`."""

    event: str
    run: str
    record: Record | None = None
    error: str = ""

    def say(self) -> None:
        record = json.loads(to_line(self.record)) if self.record is not None else None
        told = {"event": self.event, "run": self.run, "record": record, "error": self.error}
        print(MARK + json.dumps(told), flush=True)

    @staticmethod
    def find(line: str) -> "Message | None":
        """The message in a line of output, behind whatever label the launcher put there."""
        _, mark, text = line.partition(MARK)
        if not mark:
            return None
        try:
            told = parse(text.encode())
            record = from_dict(told["record"]) if told["record"] is not None else None
            return Message(str(told["event"]), str(told["run"]), record, str(told["error"]))
        except (RecordError, TypeError, KeyError) as reason:
            shown = text if len(text) <= 80 else f"{text[:77]}..."
            damaged = f"a message of a worker is damaged ({reason}): {shown!r}; add --resume to go on."
            raise RecordError(damaged) from None


class Probe:
    """Watches one trial and turns what the loop and the compressor tell into records."""

    def __init__(self, trial: Trial, contender: Contender, job: Job, rank: int, ranks: int) -> None:
        self.trial, self.contender, self.job, self.rank, self.ranks = trial, contender, job, rank, ranks
        self.steps: list[Step] = []
        self.evals: list[Eval] = []
        self.compressor: Compressor | None = None
        self.parameters = 0
        self.traffic = Traffic()
        self.sent: list[int | None] = [0]
        self.decisions = 0  # that were told

    def prepare(self, model: nn.Module) -> Compressor:
        self.parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
        self.compressor = self.contender.attach(model, self.trial.seed)
        self.traffic = Traffic()  # what the model's construction sent does not count
        return self.compressor

    def prepare_outer(self, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: Any) -> Compressor:
        self.parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
        self.compressor = self.contender.attach_outer(model, optimizer, self.trial.seed, scaler)
        self.traffic = Traffic()
        return self.compressor

    def on_step(self, done: int) -> None:
        self.sent.append(self.traffic.total())

    def on_record(self, record: dict[str, Any]) -> None:
        if self.contender.outer is not None:
            self.sent[-1] = self.traffic.total()  # with the round that comes before the end
        step = self._step(record)
        self.steps.append(step)
        self._say(step)
        self._say_decisions()
        if "test_accuracy" in record and self.contender.trains:
            found = Eval(
                run=self.trial.run,
                step=step.step,
                seconds=step.seconds,
                bytes_total=step.bytes_total,
                accuracy=record["test_accuracy"],
                loss=record["test_loss"],
            )
            self.evals.append(found)
            self._say(found)

    def _say_decisions(self) -> None:
        """What `auto` has decided since the last record."""
        if not isinstance(self.compressor, Attached):
            return
        for made in self.compressor.handle.decisions[self.decisions :]:
            self.decisions += 1
            self._say(
                Decision(
                    run=self.trial.run,
                    step=made.step,
                    plan=made.plan,
                    reason=made.reason,
                    plain_seconds=made.plain_seconds,
                    network_share=made.network_share,
                    predicted=dict(made.predicted),
                    measured=dict(made.measured),
                )
            )

    def finish(self) -> None:
        """The layers and the summary; all ranks take part."""
        total = self.sent[-1]
        sums = torch.tensor([float(total or 0), float(total is not None)], dtype=torch.float64)
        dist.all_reduce(sums)
        each = sums[0].item() / self.ranks / (len(self.sent) - 1) if sums[1].item() == self.ranks else None
        assert self.compressor is not None
        self._say(Layers(run=self.trial.run, layers=self.compressor.layers()))
        self._say(summary_of(self, each))

    def _say(self, record: Record) -> None:
        if self.rank == 0:
            Message("record", self.trial.run, record).say()

    def _step(self, record: dict[str, Any]) -> Step:
        now, last = self.sent[-1], self.sent[-2]
        times = {f"{what}_seconds": record.get(f"{what}_seconds") for what in _TIMES}
        return Step(
            run=self.trial.run,
            step=record["step"],
            loss=record["loss"],
            seconds=record["time"],
            step_seconds=record["step_time"],
            bytes_sent=now - last if now is not None and last is not None else record.get("bytes_sent"),
            bytes_total=now,
            relative_error=record.get("relative_error"),
            **times,
        )


_TIMES = ("encode", "communicate", "decode", "exposed")


def summary_of(probe: Probe, bytes_per_step: float | None) -> Summary:
    """Medians leave out the first few steps, in which everything is slow for the first time."""
    trial, steps = probe.trial, probe.steps
    settled = steps[min(5, len(steps) // 3) :]
    step_seconds = step_seconds_of(settled, probe.contender.outer is not None)
    exposed = _median([s.exposed_seconds for s in settled])
    ring = 8 * (probe.ranks - 1) * -(-probe.parameters // probe.ranks)
    tail = [s.loss for s in steps[-max(1, len(steps) // 10) :] if s.loss is not None]
    reached = [e.seconds for e in probe.evals if probe.job.target is not None and e.accuracy >= probe.job.target]
    return Summary(
        run=trial.run,
        label=trial.contender,
        seed=trial.seed,
        steps=steps[-1].step,
        seconds=steps[-1].seconds,
        step_seconds=step_seconds,
        samples_per_second=probe.job.recipe.batch * probe.ranks / step_seconds if step_seconds else None,
        bytes_per_step=bytes_per_step,
        wire_ratio=ring / bytes_per_step if bytes_per_step and probe.contender.trains else None,
        compute_seconds=max(0.0, step_seconds - exposed) if step_seconds and exposed is not None else None,
        encode_seconds=_median([s.encode_seconds for s in settled]),
        communicate_seconds=_median([s.communicate_seconds for s in settled]),
        decode_seconds=_median([s.decode_seconds for s in settled]),
        exposed_seconds=exposed,
        relative_error=_median([s.relative_error for s in steps]),
        train_loss=statistics.fmean(tail) if tail and probe.contender.trains else None,
        test_loss=probe.evals[-1].loss if probe.evals else None,
        accuracy=probe.evals[-1].accuracy if probe.evals else None,
        target_accuracy=probe.job.target,
        seconds_to_target=reached[0] if reached else None,
    )


def step_seconds_of(steps: Sequence[Step], outer: bool) -> float | None:
    """The usual time of a step; with outer steps the mean, because a median would leave the rounds out."""
    if not outer or len(steps) < 2:
        return _median([s.step_seconds for s in steps])
    return (steps[-1].seconds - steps[0].seconds) / (steps[-1].step - steps[0].step)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def run_trial(trial: Trial, job: Job, data: Data, rank: int, ranks: int) -> None:
    contender = parse_contender(trial.contender)
    probe = Probe(trial, contender, job, rank, ranks)
    if rank == 0:
        Message("begin", trial.run).say()
    dist.barrier()
    outer = contender.outer is not None
    recipe = replace(job.recipe, seed=trial.seed)
    if outer:
        recipe = replace(recipe, log_every=LOGGED_EVERY)
    train(
        recipe,
        seconds=job.seconds,
        prepare=None if outer else probe.prepare,
        prepare_outer=probe.prepare_outer if outer else None,
        on_step=probe.on_step,
        on_record=probe.on_record,
        data=data,
        progress=False,
        ddp_options=contender.ddp_options,
        plan=contender.plan,
    )
    probe.finish()
    assert probe.compressor is not None
    probe.compressor.close()


def one_line(reason: BaseException) -> str:
    """The kind of an error and the first line of what it says."""
    text = str(reason).strip()
    first = text.splitlines()[0] if text else ""
    if wrapped := _FROM_BACKWARD.fullmatch(first):
        return wrapped[1]
    return first if type(reason).__module__.startswith("thinwire") else f"{type(reason).__name__}: {first}"


def main(argument: str) -> None:
    job = Job.from_json(argument)
    dist.init_process_group("gloo", timeout=PATIENCE)
    with joined_world("cpu") as place:
        data = load_data(job.recipe)
        for trial in job.trials:
            try:
                run_trial(trial, job, data, place.rank, place.ranks)
            except Exception as reason:
                Message("failed", trial.run, error=one_line(reason)).say()
                sys.stderr.flush()
                os._exit(1)  # peers that wait for this rank must see its connections close
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
