"""docs/claims.md: the claims' table, the convergence of trainings, and each measurement with its picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.claims.findings import Figures, Finding
from thinwire_lab.report.jsonl import RecordError, read_document

INTRODUCTION = (
    "This page is written by `python -m benchmarks.claims`, from gradients of trainings that the command runs itself."
    " It sets what the papers report beside what comes out here, on small networks and one machine: proportions can be"
    " compared, absolute speeds and accuracies cannot. Where a method loses, the page says so."
)


def page(findings: Sequence[Finding], about: Mapping[str, Any], notes: Sequence[str], convergence: str) -> str:
    """The whole text."""
    parts = ["# Claims of the papers, measured", INTRODUCTION, _circumstances(about)]
    parts += list(notes)
    parts += ["## Claims", claims_table(findings), "## Where a method loses", _losses(findings)]
    parts += ["## Convergence", convergence]
    return "\n\n".join([*parts, *(section(finding) for finding in findings)]) + "\n"


def section(finding: Finding) -> str:
    """A finding's explanation, picture and tables."""
    parts = [f"## {finding.title}"]
    if finding.explanation:
        parts.append(finding.explanation)
    if finding.plot:
        parts.append(f"![{finding.title}](claims/{finding.plot}.svg)")
    return "\n\n".join([*parts, *(f"{figures.caption}:\n\n{table(figures)}" for figures in finding.figures)])


def _circumstances(about: Mapping[str, Any]) -> str:
    rows = [[str(key), f"`{value}`" if key == "command" else str(value)] for key, value in about.items()]
    return table(Figures("", ("measured", "on"), rows))


def claims_table(findings: Sequence[Finding]) -> str:
    """A row for each claim, with the command that measures it alone."""
    rows = [
        [c.paper, c.claim, c.reported, c.measured, c.verdict, f"`python -m benchmarks.claims --only {finding.key}`"]
        for finding in findings
        for c in finding.claims
    ]
    return table(Figures("", ("paper", "claim", "paper's figure", "here", "verdict", "command"), rows))


def _losses(findings: Sequence[Finding]) -> str:
    sentences = [f"- {sentence}" for finding in findings for sentence in finding.losses]
    return "\n".join(sentences) or "No case in this run."


def table(figures: Figures) -> str:
    lines = [figures.header, ["---"] * len(figures.header), *figures.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


@dataclass(frozen=True, kw_only=True)
class _Accuracies:
    """Those of one codec beside those of none, by seed."""

    codec: str
    accuracies: list[float]
    none: list[float]
    wire_ratio: float | None = None


@dataclass(frozen=True, kw_only=True)
class _Convergence:
    summary: list[_Accuracies]
    circumstances: dict[str, Any] | None = None


def convergence_text(path: Path) -> str:
    """Accuracies of whole trainings, as `benchmarks/convergence.py` has left them."""
    if not path.is_file():
        return "Not measured yet."
    document, rows = read_document(path, _Convergence, "benchmarks/convergence.py"), []
    about = document.circumstances or {}
    counted = about.get("thinwire") != "0.1.0"
    for run in document.summary:
        if not run.accuracies or not run.none:
            raise RecordError(f"{path}: {run.codec} has no accuracies; run benchmarks/convergence.py again.")
        mine, plain = _mean(run.accuracies), _mean(run.none)
        ratio = f"{run.wire_ratio:.1f}x" if run.wire_ratio is not None and counted else ""
        gap = f"{100 * (mine - plain):+.2f}"
        seeds = str(len(run.accuracies))
        rows.append([f"`{run.codec}`", f"{100 * mine:.2f} %", f"{100 * plain:.2f} %", gap, ratio, seeds])
    header = ("codec", "accuracy", "uncompressed", "points", "times fewer bytes", "seeds")
    made = f"thinwire {about.get('thinwire', 'of an unknown version')}, {about.get('date', 'at an unknown date')}"
    told = f"Made by `python benchmarks/convergence.py` ({made}), not by the command of this page."
    if not counted:
        told += " Ratios are left out: that version counted each tensor alone, and DDP sends fewer bytes."
    return f"{told} Final test accuracy, means over seeds:\n\n{table(Figures('', header, rows))}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
