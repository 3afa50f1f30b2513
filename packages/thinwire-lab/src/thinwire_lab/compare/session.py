"""A comparison from its first run to its last: the lab, the workers in it, and the file of results."""

import platform
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy
import torch

from thinwire import __version__
from thinwire.machine import machine
from thinwire_lab.compare.contenders import Contender
from thinwire_lab.compare.worker import Job, Message, Trial
from thinwire_lab.lab import Lab, LabError, LabSpec, launch
from thinwire_lab.recipes import Batches, Recipe, RecipeError, load_data
from thinwire_lab.recipes.budget import EVALUATIONS, check_seconds
from thinwire_lab.recipes.evaluation import guess_accuracy
from thinwire_lab.recipes.momentum import where_momentum_is
from thinwire_lab.recipes.recipe import fresh_model
from thinwire_lab.report.record import Record, RecordError, Run, RunLog, Summary, Writer, read_results

Watcher = Callable[[Record], None]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is compared, and where."""

    contenders: Sequence[Contender]
    recipe: Recipe
    recipe_name: str
    lab: LabSpec
    procs_per_host: int = 1
    seeds: int = 1
    seconds: float | None = None  # of training for each run, in place of the recipe's steps
    target: float | None = None
    command: str = ""
    guess: float | None = None  # accuracy of always giving the most frequent answer; None: not known yet

    def __post_init__(self) -> None:
        if self.ranks < 2:
            raise LabError(f"a comparison needs at least 2 ranks, not {self.ranks}; give --hosts 2 or more")
        if not self.contenders:
            raise LabError("there is nothing to compare; name at least one codec with --codecs")
        if self.seeds < 1:
            raise LabError(f"a comparison needs at least 1 seed, not {self.seeds}")
        if self.seconds is not None:
            check_seconds(self.seconds)

    @property
    def ranks(self) -> int:
        return self.lab.hosts * self.procs_per_host

    @property
    def mode(self) -> str:
        """What is equal for all contenders: `steps`, or `seconds` of training."""
        return "steps" if self.seconds is None else "seconds"

    def trials(self) -> list[tuple[Trial, Contender]]:
        """All contenders with the first seed, then all with the second: early results compare everyone."""
        seeds = range(self.recipe.seed, self.recipe.seed + self.seeds)
        return [(Trial(f"{c.text} #{seed}", c.text, seed), c) for seed in seeds for c in self.contenders]


def prepared(
    comparison: Comparison, epochs: float | None = None, spread_evaluations: bool = False
) -> tuple[Comparison, int]:
    """The comparison with its steps (and evaluations) settled, and the number of the model's parameters.

    Data and model are made here once, so that a wrong path is told before any host is started.
    """
    recipe = comparison.recipe
    data = load_data(recipe)
    batches = Batches(data.train, batch=recipe.batch, seed=recipe.seed, ranks=comparison.ranks)
    if epochs is not None:
        if epochs <= 0:
            raise RecipeError(f"epochs must be more than 0, not {epochs}.")
        recipe = replace(recipe, steps=max(1, round(epochs * batches.steps_per_epoch)))
    if spread_evaluations:
        recipe = replace(recipe, evaluate_every=max(1, recipe.steps // EVALUATIONS))
    model = fresh_model(recipe, data)
    settled = replace(comparison, recipe=recipe, guess=guess_accuracy(data.test))
    return settled, sum(p.numel() for p in model.parameters() if p.requires_grad)


class Session:
    """Runs what is not done yet, and writes every record as it comes."""

    def __init__(self, comparison: Comparison, parameters: int, path: str | Path, resume: bool = False) -> None:
        self.comparison, self.parameters, self.path = comparison, parameters, Path(path)
        self.contenders = {trial.run: contender for trial, contender in comparison.trials()}
        done = self._done(resume)
        self.waiting = [trial for trial, _ in comparison.trials() if trial.run not in done]
        self._forget()

    def run(self, watch: Watcher) -> None:
        """Train all trials; one that fails leaves a summary with its error, and the rest goes on in new processes."""
        lab = self.comparison.lab
        if not self.waiting:
            return
        with Writer(self.path) as writer, Lab(lab.hosts, lab.links, lab.latency) as cluster:

            def keep(record: Record) -> None:
                writer.write(record)
                watch(record)

            while self.waiting:
                self._launch(cluster, keep)

    def _launch(self, cluster: Lab, keep: Watcher) -> None:
        """Start workers on what is waiting, until all is done or one trial has failed."""
        recipe, seconds, target = self.comparison.recipe, self.comparison.seconds, self.comparison.target
        job = Job(recipe=recipe, trials=self.waiting, seconds=seconds, target=target)
        self._forget()
        code = launch(
            cluster,
            ["-m", "thinwire_lab.compare.worker", job.to_json()],
            self.comparison.procs_per_host,
            echo=lambda line: self._hear(line, keep),
        )
        if not self.waiting:
            return
        if self._begun is None:
            said = self._error or (self.output[-1] if self.output else f"exit code {code}")
            raise LabError(f"the workers ended before they began to train: {said}")
        failed = self._begun
        error = self._error or (self.output[-1] if self.output else f"the workers ended with exit code {code}")
        keep(Summary(run=failed.run, label=failed.contender, seed=failed.seed, error=error))
        # Another seed would fail alike, and take a launch to do so; --resume tries them all again.
        self.waiting = [trial for trial in self.waiting if trial.contender != failed.contender]

    def _forget(self) -> None:
        self.output: list[str] = []  # what the hosts said apart from messages
        self._begun: Trial | None = None
        self._error = ""

    def _hear(self, line: str, keep: Watcher) -> None:
        message = Message.find(line)
        if message is None:
            self.output = [*self.output[-99:], line]
            return
        trial = next((trial for trial in self.waiting if trial.run == message.run), None)
        if trial is None:
            return
        if message.event == "begin":
            self._begun = trial
            keep(self._run_record(trial))
        elif message.event == "failed":
            self._error = self._error or message.error  # the first to fail knows why; the others saw it leave
        elif message.record is not None:
            keep(message.record)
            if isinstance(message.record, Summary):
                self.waiting.remove(trial)
                self._begun = None

    def _run_record(self, trial: Trial) -> Run:
        comparison, contender = self.comparison, self.contenders[trial.run]
        return Run(
            run=trial.run,
            label=contender.text,
            codec=contender.codec,
            baseline=contender.baseline,
            seed=trial.seed,
            hosts=comparison.lab.hosts,
            procs_per_host=comparison.procs_per_host,
            ranks=comparison.ranks,
            link=comparison.lab.links,
            latency=comparison.lab.latency,
            mode=comparison.mode,
            seconds=comparison.seconds,
            recipe=recipe_record(comparison),
            parameters=self.parameters,
            momentum=where_momentum_is(contender.plan),
            target_accuracy=comparison.target,
            guess_accuracy=comparison.guess,
            command=comparison.command,
            versions=versions(),
            machine=machine(),
            started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )

    def _done(self, resume: bool) -> set[str]:
        """Runs that need not be done again; a file that is there already must be resumed, and fit."""
        if not self.path.exists() or not self.path.stat().st_size:  # an interrupted comparison may not have begun
            return set()
        if not resume:
            raise RecordError(f"{self.path} exists already; add --resume to go on with it, or give another -o.")
        logs = read_results(self.path)
        for log in logs:
            self._check_fits(log)
        return {log.run.run for log in logs if log.summary is not None and log.summary.error is None}

    def _check_fits(self, log: RunLog) -> None:
        """A file holds one comparison: speeds over different links or models must not meet in one table."""
        comparison, lab = self.comparison, self.comparison.lab
        ours: dict[str, Any] = {"hosts": lab.hosts, "ranks": comparison.ranks, "link": lab.links}
        ours |= {"latency": lab.latency, "mode": comparison.mode, "seconds": comparison.seconds}
        ours |= {"target_accuracy": comparison.target}
        theirs = {name: getattr(log.run, name) for name in ours} | log.run.recipe
        ours |= recipe_record(comparison)
        for name in ours:
            if ours[name] != theirs.get(name):
                raise RecordError(
                    f"{self.path} holds another comparison ({name} is {theirs.get(name)!r} there, {ours[name]!r} here);"
                    " resume it with its own settings, or give another -o."
                )


def recipe_record(comparison: Comparison) -> dict[str, Any]:
    """The recipe as records hold it; the seed belongs to the run, and the clock may set the end and the evaluations."""
    left_out = {"seed"} if comparison.seconds is None else {"seed", "steps", "evaluate_every"}
    recipe = {name: value for name, value in asdict(comparison.recipe).items() if name not in left_out}
    return {"name": comparison.recipe_name, **recipe}


def versions() -> dict[str, str]:
    return {
        "thinwire": __version__,
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }


def typed_command(arguments: Sequence[str] | None = None) -> str:
    """The command line that was typed, ready to be typed again."""
    return shlex.join(["thinwire", *(sys.argv[1:] if arguments is None else arguments)])
