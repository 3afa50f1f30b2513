"""The tables of `thinwire bench auto` and `thinwire bench predictions` for a page of documentation."""

from collections.abc import Sequence
from pathlib import Path

from thinwire_lab.bench.auto import AutoRow, AutoSummary
from thinwire_lab.bench.predictions import MEDIAN, WORST, PredictionRow, PredictionsRow
from thinwire_lab.bench.results import Target

LOOPBACK = "loopback"


def write_auto(path: Path, rows: Sequence[AutoRow], summary: AutoSummary) -> None:
    """One line for each model and link; what misses its target is bold."""
    names = ["model", "link", "plain", "best codec", "best plan", "auto", "its plan"]
    names += ["auto / plain", "auto / best", "noise", "cost of measuring"]
    lines = _head(names, left=2)
    for row in rows:
        to_plain, to_best, cost = row.judged()
        cells = [row.model, _link(row.link), _ms(row.plain), f"{_ms(row.codec_seconds)}, `{row.codec}`"]
        cells += [_ms(row.best_seconds), _ms(row.auto), _plan(row)]
        cells += [_judged(f"{value:.2f}", value, target) for _, value, target in (to_plain, to_best)]
        cells += [f"{row.noise:.1%}", _judged(f"{row.cost:.1%}", cost[1], cost[2])]
        lines.append(_line(cells))
    lines += [
        "",
        f"{summary.as_plain} of {summary.cases} cases are at most 1.03 of plain (the worst: {summary.worst:.2f}),"
        f" {summary.near_best} are within 10 % of the best. `auto` compressed nothing in {summary.uncompressed},"
        f" rightly in {summary.rightly}. Measuring cost {summary.cost[0]:.1%} in the median, {summary.cost[1]:.1%} at"
        f" most. Two plain runs beside each other differed by up to {summary.noise:.1%}.",
    ]
    _write(path, lines)


def write_predictions(path: Path, rows: Sequence[PredictionRow], summary: PredictionsRow) -> None:
    """One line for each model and link, with the error of each codec; what misses its target is bold."""
    codecs = list(dict.fromkeys(row.codec for row in rows))
    lines = _head(["model", "link", "plain step", *(f"`{codec}`" for codec in codecs)], left=2)
    for model, link in dict.fromkeys((row.model, row.link) for row in rows):
        found = {row.codec: row for row in rows if (row.model, row.link) == (model, link)}
        plain = _ms(found["none"].measured) if "none" in found else ""
        errors = [_judged(f"{row.error:+.0%}", abs(row.error), row.target) for row in found.values()]
        lines.append(_line([model, _link(link), plain, *errors]))
    lines += [
        "",
        f"{summary.count} predictions: the median error is {summary.median:.1%} (target {MEDIAN:.0%}), the worst"
        f" {summary.worst:.0%} (target {WORST:.0%}); {len(summary.misses)} are beyond {WORST:.0%}. The codec with the"
        f" shortest predicted step was within 10 % of the fastest one in {summary.right_choices} of"
        f" {summary.choices} cases.",
    ]
    if summary.misses:
        told = "; ".join(f"{title} {error:+.0%}" for title, error in summary.misses.items())
        lines += ["", f"Misses: {told}."]
    _write(path, lines)


def _write(path: Path, lines: Sequence[str]) -> None:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _head(names: Sequence[str], left: int) -> list[str]:
    return [_line(names), "|" + "|".join("---" if at < left else "--:" for at in range(len(names))) + "|"]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _judged(shown: str, value: float | None, target: Target | None) -> str:
    return f"**{shown}**" if target is not None and value is not None and not target.met(value) else shown


def _link(link: str) -> str:
    return LOOPBACK if link == "none" else link


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms"


def _plan(row: AutoRow) -> str:
    return f"`{row.plan}`" if row.plan in ("none", *row.candidates) else "by layer"
