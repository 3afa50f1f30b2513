"""What the runs of one codec say beside the uncompressed ones of the same seeds: at equal steps and at equal bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from statistics import mean, stdev

from benchmarks.evidence.runs import Run
from benchmarks.evidence.tasks import Task


@dataclass(frozen=True)
class Figures:
    """Means over the seeds that the uncompressed run has too; positive gains are better."""

    runs: Sequence[Run]
    gain: float
    gain_at_bytes: float | None  # None: of some seed there are no shorter uncompressed runs
    spread: float  # the standard deviation of the uncompressed seeds

    @property
    def ratio(self) -> float:
        return mean(run.ratio for run in self.runs)

    @property
    def values(self) -> list[float]:
        return [run.final for run in self.runs]

    def loses(self, gain: float) -> bool:
        """Whether a gain is a loss of more than two deviations; of any amount where there is one seed."""
        return gain < -2 * self.spread


@dataclass(frozen=True)
class Plain:
    """The uncompressed runs of one task and length, and the complete shorter ones, by seed."""

    full: Mapping[int, Run]
    shorter: Mapping[int, Sequence[Run]]

    @classmethod
    def of(cls, runs: Sequence[Run], task: str, steps: int) -> "Plain":
        mine = [run for run in runs if (run.task, run.codec) == (task, "none")]
        full = {run.seed: run for run in mine if run.steps == steps}
        return cls(full, {seed: [r for r in mine if r.seed == seed and r.steps < steps] for seed in full})

    @property
    def spread(self) -> float:
        return stdev([run.final for run in self.full.values()]) if len(self.full) > 1 else 0.0

    def at_bytes(self, seed: int, sent: float) -> float | None:
        """The figure at the end of an uncompressed run that sends so many bytes; None if there are no shorter runs.

        Between the lengths that were run it is interpolated by the logarithm of the bytes; below the shortest run it is
        that of the shortest run.
        """
        if not self.shorter[seed]:
            return None
        points = sorted((run.curve[-1][1], run.final) for run in (*self.shorter[seed], self.full[seed]))
        before = points[0]
        for point in points:
            if point[0] >= sent:
                share = log(sent / before[0]) / log(point[0] / before[0]) if sent > before[0] else 0.0
                return before[1] + share * (point[1] - before[1])
            before = point
        return before[1]


def compare(task: Task, codec: str, runs: Sequence[Run], plain: Plain, steps: int) -> Figures | None:
    """The figures of a codec's runs of this length; None without a seed that the uncompressed run has too."""
    mine = [r for r in runs if (r.task, r.codec, r.steps) == (task.key, codec, steps) and r.seed in plain.full]
    if not mine:
        return None
    sign = 1 if task.figure == "accuracy" else -1
    at_bytes = [(run, plain.at_bytes(run.seed, run.curve[-1][1])) for run in mine]
    gains = [sign * (run.final - figure) for run, figure in at_bytes if figure is not None]
    return Figures(
        runs=mine,
        gain=mean(sign * (run.final - plain.full[run.seed].final) for run in mine),
        gain_at_bytes=mean(gains) if len(gains) == len(mine) else None,
        spread=plain.spread,
    )


def shown(task: Task, value: float) -> str:
    return f"{100 * value:.2f} %" if task.figure == "accuracy" else f"{value:.3f}"


def shown_with_spread(task: Task, values: Sequence[float]) -> str:
    return f"{shown(task, mean(values))}{f' ± {shown(task, stdev(values))}' if len(values) > 1 else ''}"


def shown_gain(task: Task, figures: Figures, gain: float | None) -> str:
    """A gain with its sign, bold where it is a loss; nothing if it is not known."""
    if gain is None:
        return ""
    text = f"{'+' if gain >= 0 else '−'}{shown(task, abs(gain))}"
    return f"**{text}**" if figures.loses(gain) else text
