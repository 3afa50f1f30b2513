"""Predicted steps beside measured ones, in the same run: models, links and codecs.

This module is also the program of every host. It profiles a few plain steps, the link and the codecs as `thinwire
advise` does, predicts each codec's step, and then trains with each of them.
"""

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.table import Table

from thinwire.planner.measure import measure as measure_profile
from thinwire.planner.predict import predict
from thinwire_lab.bench.collectives import turns_in_span
from thinwire_lab.bench.ddp import Workload
from thinwire_lab.bench.ddp_worker import Runner, fresh_model, made_up_batches
from thinwire_lab.bench.launching import launched, report, work
from thinwire_lab.bench.results import Target, at_most, columns
from thinwire_lab.recipes.place import Place

LINKS = ("50mbit", "200mbit", "1gbit", "none")
CODECS = (
    *("none", "bf16", "int8", "qsgd(bits=8)", "qsgd(bits=4)", "nuqsgd(bits=4)", "onebit"),
    *("powersgd(rank=4)", "fftsgd"),
)
WORKLOADS = {
    "vgg": Workload("vgg", 4, options={"width": 28}),
    "resnet": Workload("resnet", 4),
    "gpt": Workload("gpt", 2, options={"width": 128, "layers": 4, "heads": 4}),
}
STEPS = 5  # that are measured with each codec, at most
PROFILED = 16  # plain ones: where ranks share cores, their steps vary by tens of per cent
SPAN = 1.0  # seconds of measured steps with each codec
MEDIAN, WORST = 0.15, 0.30  # targets for the relative error
ERROR = at_most(WORST)


@dataclass(frozen=True)
class PredictionRow:
    """One codec with one model on one link; seconds are of the slowest rank, medians over steps."""

    kind: ClassVar[str] = "prediction"

    model: str
    parameters: int
    link: str
    ranks: int
    codec: str
    measured: float
    predicted: float
    bytes_sent: int
    bytes_predicted: int
    target: Target | None = ERROR

    @property
    def title(self) -> str:
        return f"{self.codec}, {self.model}, {self.link}"

    @property
    def error(self) -> float:
        """How much too long the prediction is, relative to what was measured."""
        return self.predicted / self.measured - 1.0

    def judged(self) -> list[tuple[str, float | None, Target | None]]:
        return [("error of the prediction", abs(self.error), self.target)]


@dataclass(frozen=True)
class PredictionsRow:
    """All predictions together."""

    kind: ClassVar[str] = "prediction-summary"

    count: int
    median: float
    worst: float
    misses: dict[str, float]  # beyond 30 %, by their titles, the largest first
    right_choices: int
    choices: int

    @property
    def title(self) -> str:
        return f"{self.count} predictions"

    def judged(self) -> list[tuple[str, float | None, Target | None]]:
        return [("median error", self.median, at_most(MEDIAN)), ("worst error", self.worst, at_most(WORST))]


def bench_predictions(
    name: str,
    workload: Workload,
    link: str,
    hosts: int = 4,
    codecs: Sequence[str] = CODECS,
    steps: int = STEPS,
    tell: Callable[[str], None] | None = None,
    profile: str | None = None,
) -> list[PredictionRow]:
    """Predict and measure all codecs with one model in a lab of hosts behind links of this rate ('none': loopback).

    `profile`: a file for the profile that was taken.
    """
    job = {
        "model": workload.model,
        "batch": workload.batch,
        "context": workload.context,
        "model_options": dict(workload.options),
        "codecs": list(codecs),
        "steps": steps,
        "profile": profile,
    }
    found = launched("thinwire_lab.bench.predictions", job, hosts, link, tell)
    common = {"model": name, "parameters": found["parameters"], "link": link, "ranks": hosts}
    return [PredictionRow(**common, **row) for row in found["rows"]]


def summed_up(rows: Sequence[PredictionRow]) -> PredictionsRow:
    """The errors of all predictions, and how often the codec that is predicted to be the fastest nearly is."""
    errors = [abs(row.error) for row in rows]
    cases = {(row.model, row.link) for row in rows}
    right = sum(_is_right([row for row in rows if (row.model, row.link) == case]) for case in cases)
    missed = {row.title: row.error for row in sorted(rows, key=lambda row: -abs(row.error)) if abs(row.error) > WORST}
    return PredictionsRow(len(rows), statistics.median(errors), max(errors), missed, right, len(cases))


def _is_right(rows: Sequence[PredictionRow]) -> bool:
    """Whether the codec with the least prediction is within 10 % of the fastest."""
    chosen = min(rows, key=lambda row: row.predicted)
    return chosen.measured <= 1.1 * min(row.measured for row in rows)


def measure(job: dict[str, Any], place: Place) -> dict[str, Any]:
    model, batches = fresh_model(job), made_up_batches(job, place.rank)
    plain = Runner("ddp", model)
    report(place, "profile")
    # without a common moment: the pause before it would be a part of the step that is observed
    profile = measure_profile(plain.parallel, lambda: plain.train(batches, together=False), PROFILED, job["codecs"])
    plain.compressor.close()
    rows = []
    for codec in job["codecs"]:
        report(place, codec)
        runner = Runner(codec, model)
        runner.settle(batches)
        runner.turn(batches, max(2, turns_in_span(job["steps"], runner.pace, SPAN)))
        figures = runner.figures()
        runner.compressor.close()
        prediction = predict(profile, codec)
        rows.append(
            {
                "codec": codec,
                "measured": figures["seconds"],
                "predicted": prediction.step,
                "bytes_sent": figures["bytes_sent"] or 0,
                "bytes_predicted": prediction.sent,
            }
        )
    if place.rank == 0 and job["profile"] is not None:
        profile.save(job["profile"])
    return {"parameters": sum(p.numel() for p in model.parameters()), "rows": rows}


def predictions_table(rows: Sequence[PredictionRow]) -> Table:
    """One model on one link, for the terminal; a miss is red."""
    first = rows[0]
    title = f"{first.model}, {first.parameters:,} parameters, {first.ranks} ranks, link {first.link}: step in ms"
    names = ("codec", "measured", "predicted", "error", "MB sent", "MB predicted")
    table = columns(Table(title=title, title_justify="left"), names)
    for row in rows:
        shown = f"{row.error:+.0%}"
        table.add_row(
            row.codec,
            f"{row.measured * 1e3:.1f}",
            f"{row.predicted * 1e3:.1f}",
            shown if row.target is None or row.target.met(abs(row.error)) else f"[bold red]{shown}[/]",
            f"{row.bytes_sent / 1e6:.2f}",
            f"{row.bytes_predicted / 1e6:.2f}",
        )
    return table


def summary_table(row: PredictionsRow) -> Table:
    """The errors of all predictions, and each that missed its target."""
    names = ("predictions", "median error", "worst", f"beyond {WORST:.0%}", "best codec found")
    table = columns(Table(title="all cases", title_justify="left"), names)
    found = f"{row.right_choices} of {row.choices}"
    table.add_row(str(row.count), f"{row.median:.1%}", f"{row.worst:.0%}", str(len(row.misses)), found)
    told = [f"{title}: {error:+.0%}" for title, error in row.misses.items()]
    table.caption, table.caption_justify = "\n".join(told), "left"
    return table


if __name__ == "__main__":
    work(sys.argv[1:], measure)
