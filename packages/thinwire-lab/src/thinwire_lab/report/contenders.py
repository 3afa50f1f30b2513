"""The runs of a comparison as the plots need them: by contender, with the seeds drawn together."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from thinwire_lab.report.palette import Look, looks_for
from thinwire_lab.report.record import Layer, RunLog, Step, read_results
from thinwire_lab.report.standings import PLAIN, Standing, plain_standing, standings

MAX_POINTS = 250  # of a curve: more cannot be told apart, and every one makes the page larger


@dataclass(frozen=True)
class Point:
    """A place on a curve: the means over the seeds, and the lowest and highest of them."""

    step: int  # or the number of the evaluation
    x: float
    y: float
    low: float
    high: float

    def in_units(self, x: float = 1.0, y: float = 1.0) -> "Point":
        return Point(self.step, self.x / x, self.y / y, self.low / y, self.high / y)


@dataclass(frozen=True)
class Contender:
    """Everything about one codec, or one of the ways it is measured against."""

    logs: tuple[RunLog, ...]
    standing: Standing
    look: Look

    @property
    def label(self) -> str:
        return self.standing.label

    def accuracy_by_time(self) -> list[Point]:
        """Accuracy on the test part against seconds of training.

        Seeds that train for equal time make different numbers of steps: there the first evaluation of one is drawn
        together with the first of the others, and so on.
        """
        by_order = self.logs[0].run.mode == "seconds"
        runs = [
            {order if by_order else e.step: (e.seconds, e.accuracy) for order, e in enumerate(log.evals)}
            for log in self._drawn()
        ]
        return over_seeds(runs)

    def loss_by_bytes(self) -> list[Point]:
        """Training loss against the bytes that one rank has sent; a point is the mean of neighbouring steps."""
        runs = [log.steps for log in self._drawn()]
        size = -(-max(map(len, runs)) // MAX_POINTS)
        return over_seeds([thinned(steps, size) for steps in runs])

    def layers(self) -> list[Layer]:
        return next((log.layers for log in self.logs if log.layers), [])

    def layer_error(self, place: int) -> float | None:
        """Relative error of one layer, mean over the seeds that measured it."""
        errors = [log.layers[place].relative_error for log in self.logs if len(log.layers) > place]
        known = [error for error in errors if error is not None]
        return statistics.fmean(known) if known else None

    def where_step_goes(self) -> dict[str, float]:
        """The seconds of a step by part; they add up to the step.

        Encoding, sending and decoding go on during the backward pass, too. What makes a step longer is the part that is
        still to do when the last gradient is there: this exposed time is divided in the proportion of the three.
        """
        s = self.standing
        if s.step_seconds is None:
            return {}
        if s.exposed_seconds is None:
            return {"whole step": s.step_seconds}
        parts = {"compute": max(0.0, s.step_seconds - s.exposed_seconds)}
        busy = {"encode": s.encode_seconds, "communicate": s.communicate_seconds, "decode": s.decode_seconds}
        known = {name: seconds for name, seconds in busy.items() if seconds is not None}
        total = sum(known.values())
        if not total:
            return {**parts, "wait": s.exposed_seconds}
        return parts | {name: s.exposed_seconds * seconds / total for name, seconds in known.items()}

    def _drawn(self) -> list[RunLog]:
        """The runs behind the curves: failed ones only where there is nothing better."""
        good = [log for log in self.logs if log.summary is None or log.summary.error is None]
        return good or list(self.logs)


def read_contenders(results: Path) -> list[Contender]:
    """The contenders of a file of results, in the order in which they were begun."""
    logs = read_results(results)
    rows = standings(logs)
    labels = [row.label for row in rows]
    looks = looks_for(labels, next((label for label in PLAIN if label in labels), None))
    return [Contender(tuple(log for log in logs if log.run.label == r.label), r, looks[r.label]) for r in rows]


def plain_contender(contenders: Sequence[Contender]) -> Contender | None:
    """Uncompressed training, which the others are measured against."""
    plain = plain_standing([c.standing for c in contenders])
    return next((c for c in contenders if c.standing is plain), None) if plain is not None else None


def over_seeds(runs: Sequence[dict[int, tuple[float, float]]]) -> list[Point]:
    """One curve of several; only steps that all of them have, because a mean over fewer would jump."""
    runs = [run for run in runs if run]
    if not runs:
        return []
    points = []
    for step in sorted(set(runs[0]).intersection(*runs[1:])):
        xs, ys = zip(*(run[step] for run in runs), strict=True)
        points.append(Point(step, statistics.fmean(xs), statistics.fmean(ys), min(ys), max(ys)))
    return points


def thinned(steps: Sequence[Step], size: int) -> dict[int, tuple[float, float]]:
    """Last step of each group of `size` neighbours -> (bytes sent until then, mean loss of the group)."""
    known = [(s.step, float(s.bytes_total), s.loss) for s in steps if s.bytes_total is not None and s.loss is not None]
    groups = [known[start : start + size] for start in range(0, len(known), size)] if known else []
    return {group[-1][0]: (group[-1][1], statistics.fmean(loss for _, _, loss in group)) for group in groups}


def ranked(contenders: Sequence[Contender], figure: Callable[[Standing], float | None]) -> list[Contender]:
    """Those whose figure is known, largest first."""
    known = [(value, c) for c in contenders if (value := figure(c.standing)) is not None]
    return [c for _, c in sorted(known, key=lambda pair: -pair[0])]
