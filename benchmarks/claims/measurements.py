"""The claims of the papers, measured on recorded gradients: runs everything, writes docs/claims.md and its pictures."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.claims.aggregation import aggregation_text, replaced
from benchmarks.claims.choice import choice_finding
from benchmarks.claims.errors import QUANTISERS, SELECTORS, curves, rivalries
from benchmarks.claims.errors_findings import error_finding
from benchmarks.claims.findings import Finding
from benchmarks.claims.gradiveq import ages, sweeps
from benchmarks.claims.gradiveq_findings import age_finding, linear_finding, order_finding
from benchmarks.claims.page import convergence_text, page
from benchmarks.claims.plots import (
    Draw,
    draw_age,
    draw_errors,
    draw_order,
    draw_support,
    draw_variance,
    save_plots,
)
from benchmarks.claims.recording import Recording
from benchmarks.claims.recovery import recoveries, recovery_finding
from benchmarks.claims.support import support, support_finding
from benchmarks.claims.transform import transform_finding
from benchmarks.claims.variance import spreads, variance_finding
from thinwire_lab.bench.timing import circumstances

Drawing = tuple[float, Draw]  # inches high, and what draws it
Result = tuple[Finding, Drawing | None]


def measure_linearity(recordings: Sequence[Recording]) -> Result:
    return linear_finding(recordings), None


def measure_order(recordings: Sequence[Recording]) -> Result:
    found = sweeps(recordings)
    return order_finding(found), (3.6, partial(draw_order, sweeps=found))


def measure_age(recordings: Sequence[Recording]) -> Result:
    found = [ages(recording) for recording in recordings]
    return age_finding(found), (4.2, partial(draw_age, found=found))


def measure_choice(recordings: Sequence[Recording]) -> Result:
    return choice_finding(recordings), None


def measure_errors(recordings: Sequence[Recording]) -> Result:
    families = {**QUANTISERS, **SELECTORS}
    found = {r.name: curves(families, r.series, r.weights) for r in recordings}
    return error_finding(found, rivalries(recordings)), (2.0 + 3.2 * len(found), partial(draw_errors, found=found))


def measure_transform(recordings: Sequence[Recording]) -> Result:
    return transform_finding(recordings), None


def measure_recovery(recordings: Sequence[Recording]) -> Result:
    return recovery_finding(recoveries()), None


def measure_support(recordings: Sequence[Recording]) -> Result:
    found = [support(recording) for recording in recordings]
    return support_finding(found), (3.6, partial(draw_support, found=found))


def measure_variance(recordings: Sequence[Recording]) -> Result:
    found = spreads(recordings)
    return variance_finding(found, recordings), (3.4, partial(draw_variance, found=found))


MEASUREMENTS: dict[str, Callable[[Sequence[Recording]], Result]] = {
    "linearity": measure_linearity,
    "order": measure_order,
    "age": measure_age,
    "choice": measure_choice,
    "errors": measure_errors,
    "transform": measure_transform,
    "recovery": measure_recovery,
    "support": measure_support,
    "variance": measure_variance,
}


def measure_claims(
    recordings: Sequence[Recording], only: str | None = None, tell: Callable[[str], None] = print
) -> tuple[list[Finding], dict[str, Drawing]]:
    """What was found, and the drawings of it."""
    findings, drawings = [], {}
    for key, measure in MEASUREMENTS.items():
        if only not in (None, key):
            continue
        tell(f"measuring {key} ...")
        finding, drawing = measure(recordings)
        findings.append(finding)
        if drawing is not None:
            drawings[key] = drawing
    return findings, drawings


def write_claims(
    output: Path, findings: Sequence[Finding], drawings: Mapping[str, Drawing], about: Mapping[str, Any],
    notes: Sequence[str] = (),
) -> None:  # fmt: skip
    """The page, and its pictures in a folder of the same name beside it."""
    output.parent.mkdir(parents=True, exist_ok=True)
    save_plots(output.with_suffix(""), drawings)
    convergence = convergence_text(output.parent / "results" / "convergence.json")
    text = page(findings, about, notes, convergence)
    times = aggregation_text(output.parent / "results" / "aggregation.jsonl")
    output.write_text(replaced(text, times), encoding="utf-8")


def public_circumstances() -> dict[str, Any]:
    """Without the folders of this machine: of a path only its last part is told."""
    about = circumstances()
    about["command"] = " ".join(Path(word).name if "/" in word else word for word in about["command"].split(" "))
    return about
