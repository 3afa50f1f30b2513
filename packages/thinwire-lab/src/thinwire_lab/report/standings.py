"""Who wins: the runs of a comparison gathered by contender, with the spread over seeds and the speed-up over `none`."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from thinwire_lab.report.record import Run, RunLog, Summary
from thinwire_lab.report.verdict import shortfall

PLAIN = ("none", "ddp")  # what the others are measured against: the first of these that ended well


@dataclass(frozen=True)
class Spread:
    """The mean over the seeds, and their standard deviation (0 for a single one)."""

    mean: float
    deviation: float
    seeds: int


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One row of the final table; times and bytes are medians over the seeds. None: not known.

    The speed-up that counts is that of the whole training, in which a codec may send its first steps as they are; the
    steady one tells what a run of many more steps would approach.
    """

    label: str
    codec: str
    baseline: bool
    mode: str  # what is equal for all contenders: `steps`, or `seconds` of training
    runs: int  # that ended well
    steps: float | None  # that were made
    seconds: float | None  # of training
    shortfall: str  # why its speed and bytes earn no praise; empty if they do
    error: str | None  # of a run that failed
    momentum: str  # in the `optimiser` or in the `chain`
    step_seconds: float | None  # median: the steady state
    mean_seconds: float | None  # of a step: the whole training, warm-up and all, divided by its steps
    samples_per_second: float | None
    speed_up: float | None  # mean_seconds of `none` (or of plain DDP, where `none` is absent) / ours
    steady_speed_up: float | None  # the same of step_seconds
    bytes_per_step: float | None
    wire_ratio: float | None
    compute_seconds: float | None
    encode_seconds: float | None
    communicate_seconds: float | None
    decode_seconds: float | None
    exposed_seconds: float | None
    relative_error: float | None
    train_loss: Spread | None
    test_loss: Spread | None
    accuracy: Spread | None
    seconds_to_target: float | None  # the median, if every seed got there
    reached_target: int  # seeds that did


def standings(logs: Sequence[RunLog]) -> list[Standing]:
    """A row for each contender, in the order in which they were begun."""
    by_label: dict[str, list[RunLog]] = {}
    for log in logs:
        by_label.setdefault(log.run.label, []).append(log)
    plain = next((label for label in PLAIN if _summaries(by_label.get(label, []))), None)
    return [_standing(runs, plain, by_label[plain] if plain is not None else []) for runs in by_label.values()]


def ranking(row: Standing) -> tuple[bool, bool, float]:
    """What to sort by, so that the best is first: by accuracy after equal time, by speed after equal steps.

    Then come those that do not count, then those that failed.
    """
    accuracy = row.accuracy.mean if row.accuracy is not None else 0.0
    figure = -accuracy if row.mode == "seconds" else row.mean_seconds or 0.0
    return not row.runs, bool(row.shortfall), figure


def plain_standing(rows: Sequence[Standing]) -> Standing | None:
    """Uncompressed training, which the others are measured against."""
    return next((row for label in PLAIN for row in rows if row.label == label and row.runs), None)


def mean_seconds(summary: Summary) -> float | None:
    """Of a step, over the whole training."""
    return summary.seconds / summary.steps if summary.seconds is not None and summary.steps else None


def _standing(logs: Sequence[RunLog], plain_label: str | None, plain_logs: Sequence[RunLog]) -> Standing:
    ended, plain = _summaries(logs), _summaries(plain_logs)
    times = [s.seconds_to_target for s in ended if s.seconds_to_target is not None]
    errors = [log.summary.error for log in logs if log.summary is not None and log.summary.error is not None]
    return Standing(
        label=logs[0].run.label,
        codec=logs[0].run.codec,
        baseline=logs[0].run.baseline,
        mode=logs[0].run.mode,
        runs=len(ended),
        steps=_median(ended, lambda s: float(s.steps)),
        seconds=_median(ended, lambda s: s.seconds),
        shortfall=_shortfall(logs[0].run, ended, plain_label, plain) if ended else "",
        error=errors[0] if errors else None,
        momentum=logs[0].run.momentum,
        step_seconds=_median(ended, lambda s: s.step_seconds),
        mean_seconds=_median(ended, mean_seconds),
        samples_per_second=_median(ended, lambda s: s.samples_per_second),
        speed_up=_times(plain, ended, mean_seconds),
        steady_speed_up=_times(plain, ended, lambda s: s.step_seconds),
        bytes_per_step=_median(ended, lambda s: s.bytes_per_step),
        wire_ratio=_median(ended, lambda s: s.wire_ratio),
        compute_seconds=_median(ended, lambda s: s.compute_seconds),
        encode_seconds=_median(ended, lambda s: s.encode_seconds),
        communicate_seconds=_median(ended, lambda s: s.communicate_seconds),
        decode_seconds=_median(ended, lambda s: s.decode_seconds),
        exposed_seconds=_median(ended, lambda s: s.exposed_seconds),
        relative_error=_median(ended, lambda s: s.relative_error),
        train_loss=_spread(ended, lambda s: s.train_loss),
        test_loss=_spread(ended, lambda s: s.test_loss),
        accuracy=_spread(ended, lambda s: s.accuracy),
        seconds_to_target=statistics.median(times) if times and len(times) == len(ended) else None,
        reached_target=len(times),
    )


def _shortfall(run: Run, ended: Sequence[Summary], plain_label: str | None, plain: Sequence[Summary]) -> str:
    mine, theirs = _spread(ended, lambda s: s.accuracy), _spread(plain, lambda s: s.accuracy)
    return shortfall(
        mine.mean if mine else None,
        theirs.mean if theirs and run.label != plain_label else None,
        plain_label or "",
        run.guess_accuracy,
        run.mode,
    )


def _summaries(logs: Sequence[RunLog]) -> list[Summary]:
    return [log.summary for log in logs if log.summary is not None and log.summary.error is None]


def _known(summaries: Sequence[Summary], figure: Callable[[Summary], float | None]) -> list[float]:
    return [value for summary in summaries if (value := figure(summary)) is not None]


def _median(summaries: Sequence[Summary], figure: Callable[[Summary], float | None]) -> float | None:
    values = _known(summaries, figure)
    return statistics.median(values) if values else None


def _times(
    plain: Sequence[Summary], ours: Sequence[Summary], figure: Callable[[Summary], float | None]
) -> float | None:
    """How many times smaller a figure of ours is than that of uncompressed training."""
    theirs, mine = _median(plain, figure), _median(ours, figure)
    return theirs / mine if theirs and mine else None


def _spread(summaries: Sequence[Summary], figure: Callable[[Summary], float | None]) -> Spread | None:
    values = _known(summaries, figure)
    if not values:
        return None
    return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0, len(values))
