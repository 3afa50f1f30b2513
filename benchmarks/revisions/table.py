"""What the samples say: medians, ratios with their spread, a verdict for each row, and the record of a run."""

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from benchmarks.revisions.installing import Revision
from benchmarks.revisions.sides import NEW, OLD, Row

NEAR = 0.05  # a ratio that differs from 1 by at most this is called near


@dataclass(frozen=True)
class Comparison:
    """Seconds of both sides, and the ratio new / old: the median over the rounds, and its quartiles as the spread.

    A round gives one ratio, of two samples that were taken one directly after the other: what slows the machine down
    for longer meets both.
    """

    old: float
    new: float
    ratio: float
    low: float
    high: float

    @staticmethod
    def of(samples: Mapping[str, Sequence[float]]) -> "Comparison":
        ratios = [new / old for old, new in zip(samples[OLD], samples[NEW], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        old, new = (statistics.median(samples[side]) for side in (OLD, NEW))
        return Comparison(old, new, statistics.median(ratios), low, high)

    @property
    def verdict(self) -> str:
        """`within 5 %`, or by how much the new side is slower or faster: uncertain if the spread includes 1."""
        if abs(self.ratio - 1) <= NEAR:
            return f"within {NEAR * 100:.0f} %"
        change = f"{abs(self.ratio - 1) * 100:.0f} % {'slower' if self.ratio > 1 else 'faster'}"
        return change if self.low > 1 or self.high < 1 else f"{change}, uncertain"


def comparisons(row: Row) -> dict[str, Comparison]:
    return {"wall": Comparison.of(row.wall), "processor": Comparison.of(row.processor)}


def verdict(row: Row) -> str:
    """One for both kinds of time where they agree."""
    wall, processor = (found.verdict for found in comparisons(row).values())
    return wall if wall == processor else f"wall {wall}; processor {processor}"


def comparison_table(rows: Sequence[Row]) -> Table:
    """All rows that were measured: times of one call, and new / old with its quartiles."""
    table = Table("case")
    for kind in ("wall", "processor"):
        for name in (f"{kind} old ms", "new ms", "new / old"):
            table.add_column(name, justify="right")
    table.add_column("verdict")
    for row in rows:
        if row.skipped is None:
            cells = [cell for found in comparisons(row).values() for cell in _cells(found)]
            table.add_row(row.case.title, *cells, verdict(row))
    return table


def _cells(found: Comparison) -> list[str]:
    times = [f"{seconds * 1e3:.4g}" for seconds in (found.old, found.new)]
    return [*times, f"{found.ratio:.3f} ({found.low:.2f} to {found.high:.2f})"]


def summary(rows: Sequence[Row]) -> list[str]:
    """Lines below the table: how many rows are near, and what was not measured."""
    measured = [row for row in rows if row.skipped is None]
    near = sum(abs(found.ratio - 1) <= NEAR for row in measured for found in comparisons(row).values())
    lines = [f"{near} of {2 * len(measured)} ratios are within {NEAR * 100:.0f} %."]
    for reason in dict.fromkeys(row.skipped for row in rows if row.skipped is not None):
        titles = [row.case.title for row in rows if row.skipped == reason]
        lines.append(f"not measured ({reason}): {'; '.join(titles)}")
    return lines


def record(rows: Sequence[Row], revisions: Mapping[str, Revision], options: Mapping[str, Any]) -> dict[str, Any]:
    """Everything as JSON: revisions, machine, options, and of each row its samples and what they say."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "revisions": {side: asdict(revision) for side, revision in revisions.items()},
        "processor": _processor_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "options": dict(options),
        "rows": [_row_record(row) for row in rows],
    }


def _row_record(row: Row) -> dict[str, Any]:
    about = {"title": row.case.title, **asdict(row.case)}
    if row.skipped is not None:
        return {**about, "skipped": row.skipped}
    found = {kind: asdict(comparison) for kind, comparison in comparisons(row).items()}
    samples = {"wall": row.wall, "processor": row.processor}
    return {**about, **found, "verdict": verdict(row), "samples": samples}


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
