"""`attach(model, "auto")` beside an exhaustive search over the same codecs: models and links, in the same run.

The workers (`bench.auto_worker`) train some steps with every plan that the planner can form from the codecs, then let
`auto` decide. At the end plain DDP, plain DDP once more, the quickest plans and `auto` take turns: how far the two
plain ones are apart is the noise of the run.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.table import Table

from thinwire_lab.bench.launching import launched
from thinwire_lab.bench.predictions import LINKS as LINKS
from thinwire_lab.bench.predictions import WORKLOADS as WORKLOADS
from thinwire_lab.bench.results import Target, at_least, at_most, columns

WORKER = "thinwire_lab.bench.auto_worker"
CODECS = ("bf16", "int8", "qsgd(bits=8)", "qsgd(bits=4)", "nuqsgd(bits=4)")  # of quality "safe" on every gradient
OVER_PLAIN, OVER_BEST, COST = at_most(1.03), at_most(1.10), at_most(0.02)
NEAR_BEST = at_least(10 / 12)  # of the cases
RUN = 1000  # steps of the run of which measuring may cost a share


@dataclass(frozen=True)
class AutoRow:
    """One model on one link; seconds are medians of steps, of the slowest rank, measured in turns.

    Args:
        candidates: The codecs that `auto` and the search had.
        plain: A step of plain DDP, of both halves together.
        halves: A step of each of the two plain contenders, which do the same.
        codec: The quickest plan of one codec, and its step.
        best: The quickest plan of all that were searched, and its step.
        auto: A step after the decision; `plan` and `reason` are those of the decision.
        cost: Seconds until the decision beyond those of as many steps after it, as a share of a run of 1,000 steps.
        searched: Each plan's step in the search, which was before.
    """

    kind: ClassVar[str] = "auto"

    model: str
    parameters: int
    link: str
    ranks: int
    candidates: list[str]
    plain: float
    halves: list[float]
    codec: str
    codec_seconds: float
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

    @property
    def noise(self) -> float:
        """How far two contenders that do the same are apart."""
        return max(self.halves) / min(self.halves) - 1.0

    @property
    def to_plain(self) -> float:
        return self.auto / self.plain

    @property
    def to_best(self) -> float:
        """Against the quickest of all, plain DDP among them."""
        return self.auto / min(self.plain, self.best_seconds, self.codec_seconds)

    def judged(self) -> list[tuple[str, float | None, Target | None]]:
        return [
            ("step / plain step", self.to_plain, self.over_plain),
            ("step / best step", self.to_best, self.over_best),
            (f"share of a run of {RUN:,} steps", self.cost, self.cost_target),
        ]


@dataclass(frozen=True)
class AutoSummary:
    """All cases together.

    Args:
        cases: Models times links.
        as_plain: Cases in which a step with `auto` takes at most 1.03 of a plain one.
        near_best: Cases in which it is within 10 % of the best one found.
        uncompressed: Cases in which `auto` chose to compress nothing.
        rightly: Those of them in which no plan that was searched made the step shorter by more than 3 %.
        worst: The largest step in relation to the plain one.
        noise: The largest noise of a case.
        cost: The median and the largest share of a run of 1,000 steps that measuring takes.
    """

    kind: ClassVar[str] = "auto-summary"

    cases: int
    as_plain: int
    near_best: int
    uncompressed: int
    rightly: int
    worst: float
    noise: float
    cost: list[float]

    @property
    def title(self) -> str:
        return f"auto, {self.cases} cases"

    def judged(self) -> list[tuple[str, float | None, Target | None]]:
        return [
            ("share within 1.03 of plain", self.as_plain / self.cases, at_least(1.0)),
            ("share within 10 % of the best", self.near_best / self.cases, NEAR_BEST),
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
    found = launched(WORKER, job, hosts, link, tell)
    return AutoRow(model=name, link=link, ranks=hosts, candidates=list(codecs), **found)


def summed_up(rows: Sequence[AutoRow]) -> AutoSummary:
    plain = [row for row in rows if row.plan == "none"]
    rightly = sum(OVER_PLAIN.met(row.plain / min(row.best_seconds, row.codec_seconds)) for row in plain)
    return AutoSummary(
        cases=len(rows),
        as_plain=sum(OVER_PLAIN.met(row.to_plain) for row in rows),
        near_best=sum(OVER_BEST.met(row.to_best) for row in rows),
        uncompressed=len(plain),
        rightly=rightly,
        worst=max(row.to_plain for row in rows),
        noise=max(row.noise for row in rows),
        cost=[statistics.median(row.cost for row in rows), max(row.cost for row in rows)],
    )


def auto_table(rows: Sequence[AutoRow]) -> Table:
    """One row for each model and link; a miss is red."""
    names = ["model", "link", "codec", "plain ms", "codec ms", "best ms", "auto ms"]
    names += ["auto / plain", "auto / best", "noise", "cost", "plan"]
    table = columns(Table(title=f"auto on {rows[0].ranks} ranks", title_justify="left"), names, left=3)
    for row in rows:
        ratios = [_marked(f"{value:.2f}", value, target) for _, value, target in row.judged()[:2]]
        times = [f"{1e3 * each:.1f}" for each in (row.plain, row.codec_seconds, row.best_seconds, row.auto)]
        cost = _marked(f"{row.cost:.1%}", row.cost, row.cost_target)
        table.add_row(row.model, row.link, row.codec, *times, *ratios, f"{row.noise:.1%}", cost, _short(row.plan))
    return table


def summary_table(row: AutoSummary) -> Table:
    title = "all cases; noise: plain DDP against plain DDP in the same run"
    names = ["at most 1.03 of plain", "worst", "within 10 % of best", "nothing compressed, rightly"]
    names += ["largest noise", "cost: median, largest"]
    table = columns(Table(title=title, title_justify="left"), names, left=0)
    table.add_row(
        f"{row.as_plain} of {row.cases}",
        f"{row.worst:.2f}",
        f"{row.near_best} of {row.cases}",
        f"{row.rightly} of {row.uncompressed}",
        f"{row.noise:.1%}",
        f"{row.cost[0]:.1%}, {row.cost[1]:.1%}",
    )
    return table


def _marked(shown: str, value: float | None, target: Target | None) -> str:
    missed = target is not None and value is not None and not target.met(value)
    return f"[bold red]{shown}[/]" if missed else shown


def _short(plan: str) -> str:
    return plan if len(plan) < 24 else "by layer"
