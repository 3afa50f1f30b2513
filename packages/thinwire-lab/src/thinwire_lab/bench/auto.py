"""`attach(model, "auto")` beside an exhaustive search over the same codecs: models and links, in the same run.

This module is also the program of every host. It trains some steps with each codec, then lets `auto` decide. At the end
plain DDP, the quickest codec and `auto` take turns.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.table import Table

from thinwire_lab.bench.collectives import largest, turns_in_span
from thinwire_lab.bench.ddp import Workload
from thinwire_lab.bench.ddp_worker import Runner, fresh_model, made_up_batches, slowest
from thinwire_lab.bench.launching import launched, report, work
from thinwire_lab.bench.results import Target, at_most, columns
from thinwire_lab.compare.contenders import Attached
from thinwire_lab.recipes.place import Place

LINKS = ("50mbit", "200mbit", "1gbit", "none")
CODECS = ("bf16", "int8", "qsgd(bits=8)", "qsgd(bits=4)", "nuqsgd(bits=4)")  # of quality "safe" on every gradient
WORKLOADS = {
    "vgg": Workload("vgg", 4, options={"width": 28}),
    "resnet": Workload("resnet", 4),
    "gpt": Workload("gpt", 2, options={"width": 128, "layers": 4, "heads": 4}),
}
SEARCHED = 5  # steps with each codec
TURNS = 3
SPAN = 1.5  # seconds of a turn
OVER_PLAIN, OVER_BEST, COST = at_most(1.03), at_most(1.10), at_most(0.02)
_MOST_STEPS = 80  # until auto must have decided
_RUN = 1000  # steps of the run of which measuring may cost a share


@dataclass(frozen=True)
class AutoRow:
    """One model on one link; seconds are medians of steps, of the slowest rank.

    `plain`, `best_seconds` and `auto` were measured in turns at the end; `searched` is the search before.
    """

    kind: ClassVar[str] = "auto"

    model: str
    parameters: int
    link: str
    ranks: int
    plain: float
    best: str
    best_seconds: float
    auto: float
    plan: str
    reason: str
    cost: float
    searched: dict[str, float]
    over_plain: Target | None = OVER_PLAIN
    over_best: Target | None = OVER_BEST
    cost_target: Target | None = COST

    @property
    def title(self) -> str:
        return f"auto, {self.model}, {self.link}"

    def judged(self) -> list[tuple[str, float | None, Target | None]]:
        return [
            ("step / plain step", self.auto / self.plain, self.over_plain),
            ("step / best step", self.auto / min(self.plain, self.best_seconds), self.over_best),
            (f"share of a run of {_RUN:,} steps", self.cost, self.cost_target),
        ]


def bench_auto(
    name: str, link: str, hosts: int = 4, codecs: Sequence[str] = CODECS, tell: Callable[[str], None] | None = None
) -> AutoRow:
    """Let `auto` choose for one model in a lab of hosts behind links of this rate ('none': loopback), and search."""
    workload = WORKLOADS[name]
    job = {
        "model": workload.model,
        "batch": workload.batch,
        "context": workload.context,
        "model_options": dict(workload.options),
        "codecs": list(codecs),
    }
    found = launched("thinwire_lab.bench.auto", job, hosts, link, tell)
    return AutoRow(model=name, link=link, ranks=hosts, **found)


def measure(job: dict[str, Any], place: Place) -> dict[str, Any]:
    model, batches = fresh_model(job), made_up_batches(job, place.rank)
    searched = {}
    for codec in job["codecs"]:
        report(place, f"search: {codec}")
        runner = Runner(codec, model)
        runner.settle(batches)
        runner.turn(batches, turns_in_span(SEARCHED, runner.pace, SPAN))
        searched[codec] = slowest(runner.seconds)
        runner.compressor.close()
    best = min(searched, key=lambda codec: searched[codec])
    report(place, "auto")
    auto, first = decided(Runner(f"auto(candidates='{'; '.join(job['codecs'])}')", model), batches)
    runners = {"ddp": Runner("ddp", model), best: Runner(best, model), "auto": auto}
    for runner in runners.values():
        runner.settle(batches)
    for turn in range(TURNS):
        report(place, f"turn {turn + 1} of {TURNS}")
        for runner in runners.values():
            runner.turn(batches, turns_in_span(SEARCHED, runner.pace, SPAN))
    seconds = {name: slowest(runner.seconds) for name, runner in runners.items()}
    assert isinstance(auto.compressor, Attached)
    decision = auto.compressor.handle.decisions[-1]
    for runner in runners.values():
        runner.compressor.close()
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "plain": seconds["ddp"],
        "best": best,
        "best_seconds": seconds[best],
        "auto": seconds["auto"],
        "plan": str(decision.plan),
        "reason": decision.reason,
        "cost": max(0.0, first["seconds"] - first["steps"] * seconds["auto"]) / (_RUN * seconds["auto"]),
        "searched": searched,
    }


def decided(runner: Runner, batches: Sequence[Any]) -> tuple[Runner, dict[str, float]]:
    """Train until `auto` has decided; the seconds and the number of steps until then."""
    assert isinstance(runner.compressor, Attached)
    began, steps = time.perf_counter(), 0
    while not runner.compressor.handle.decisions and steps < _MOST_STEPS:
        runner.train(batches)
        steps += 1
    (seconds,) = largest([time.perf_counter() - began])
    runner.seconds.clear()
    return runner, {"seconds": seconds, "steps": steps}


def auto_table(rows: Sequence[AutoRow]) -> Table:
    """One row for each model and link; a miss is red."""
    names = ("model", "link", "plain ms", "best", "best ms", "auto ms", "auto / plain", "auto / best", "cost", "plan")
    table = columns(Table(title=f"auto on {rows[0].ranks} ranks", title_justify="left"), names, left=2)
    for row in rows:
        ratios = [
            f"{value:.2f}" if target is None or target.met(value or 0.0) else f"[bold red]{value:.2f}[/]"
            for _, value, target in row.judged()[:2]
        ]
        times = [f"{1e3 * each:.1f}" for each in (row.plain, row.best_seconds, row.auto)]
        plan = row.plan if len(row.plan) < 24 else "by layer"
        table.add_row(row.model, row.link, times[0], row.best, *times[1:], *ratios, f"{row.cost:.1%}", plan)
    return table


if __name__ == "__main__":
    work(sys.argv[1:], measure)
