"""A comparison on the terminal: a table that lives while it runs, and the one that stays."""

from collections.abc import Callable, Mapping, Sequence

from rich.table import Table

from thinwire.compare.session import Comparison
from thinwire.report.record import Record, Run, RunLog, Summary
from thinwire.report.standings import Spread, Standing

WIDE = 130  # columns of a terminal that shows everything
NARROW = ("mean step", "speed-up", "sent/step", "ratio", "accuracy")


class Board:
    """Who is where: rendered anew for each frame from the records so far."""

    def __init__(self, comparison: Comparison, logs: Sequence[RunLog] = ()) -> None:
        self.comparison = comparison
        self.runs = [trial.run for trial, _ in comparison.trials()]
        self.logs: dict[str, RunLog] = {log.run.run: log for log in logs}

    def hear(self, record: Record) -> None:
        if isinstance(record, Run):
            self.logs[record.run] = RunLog(record)
        else:
            self.logs[record.run].add(record)

    def finished(self) -> list[RunLog]:
        """All logs in the order of the comparison."""
        return [self.logs[run] for run in self.runs if run in self.logs]

    def __rich__(self) -> Table:
        where = place_line(self.comparison)
        table = Table(title=where, title_justify="left", title_style="", expand=False)
        for column in ("codec", "seed", "step", "loss", "step time", "sent a step", "accuracy", ""):
            table.add_column(column, justify="left" if column in ("codec", "") else "right", no_wrap=column == "codec")
        failed = {log.run.label for log in self.logs.values() if log.summary is not None and log.summary.error}
        for trial, contender in self.comparison.trials():
            state = "[dim]left out[/]" if contender.text in failed else "[dim]waits[/]"
            log = self.logs.get(trial.run)
            cells = self._cells(log) if log is not None else ["", "", "", "", "", state]
            table.add_row(contender.text, str(trial.seed), *cells)
        return table

    def _cells(self, log: RunLog) -> list[str]:
        if not log.steps:
            error = log.summary.error if log.summary is not None else None
            return ["", "", "", "", "", f"[red]{error}[/]" if error else "starts"]
        last = log.steps[-1]
        accuracy = f"{100 * log.evals[-1].accuracy:.1f} %" if log.evals else ""
        times = sorted(step.step_seconds for step in log.steps)
        return [
            f"{last.step}/{self.comparison.recipe.steps}",
            number(last.loss, "{:.3f}"),
            milliseconds(times[len(times) // 2]),
            bytes_text(last.bytes_sent),
            accuracy,
            state_of(log.summary),
        ]


def state_of(summary: Summary | None) -> str:
    if summary is None:
        return "[yellow]trains[/]"
    return "[green]done[/]" if summary.error is None else f"[red]{summary.error}[/]"


def place_line(comparison: Comparison) -> str:
    lab, recipe = comparison.lab, comparison.recipe
    links = "plain loopback" if lab.is_loopback else f"links of {lab.links}"
    latency = f" and {lab.latency} latency" if lab.delay else ""
    ranks = f" with {comparison.procs_per_host} ranks each" if comparison.procs_per_host > 1 else ""
    return f"{comparison.recipe_name} ({recipe.model}) on {lab.hosts} hosts{ranks}, {links}{latency}"


def run_line(summary: Summary) -> str:
    """A finished run, where there is no terminal for a live table."""
    if summary.error is not None:
        return f"{summary.run}: failed: {summary.error}"
    accuracy = f", accuracy {100 * summary.accuracy:.1f} %" if summary.accuracy is not None else ""
    sent = f", {bytes_text(summary.bytes_per_step)} sent" if summary.bytes_per_step is not None else ""
    return f"{summary.run}: {summary.steps} steps, {milliseconds(summary.step_seconds)} a step{sent}{accuracy}"


def final_table(rows: Sequence[Standing], title: str, target: float | None = None, width: int = WIDE) -> Table:
    """A row for each contender; shares are those of a step's time, and what is hidden behind it may overlap.

    On a narrow terminal only what decides is shown.
    """
    legend = _LEGEND if width >= WIDE else None
    table = Table(title=title, title_justify="left", title_style="bold", caption=legend, caption_justify="left")
    table.add_column("codec", overflow="fold")
    shown = {name: cell for name, cell in _COLUMNS.items() if width >= WIDE or name in NARROW}
    if target is not None:
        shown[f"to {100 * target:g} %"] = _to_target
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    best = max((row.speed_up or 0.0 for row in rows if row.label != "headroom"), default=0.0)
    for row in rows:
        if row.runs:
            mark = "bold green" if row.speed_up == best and best > 1 else ""
            table.add_row(row.label, *(cell(row) for cell in shown.values()), style=mark)
    return table


def failed_lines(rows: Sequence[Standing]) -> list[str]:
    """One line for each contender of which a run failed."""
    return [f"{row.label} failed: {row.error}" for row in rows if row.error is not None]


_LEGEND = (
    "step: median. mean step: the whole training / its steps, warm-up and all; the speed-up is that of this mean."
    " compute + exposed = the step; code (encoding and decoding) and wire (inside collectives) partly hide behind"
    " compute. sent: TCP payload of one rank. ratio: an fp32 ring / sent."
    " A codec that has the momentum itself trains with an optimiser without."
)


def _to_target(row: Standing) -> str:
    return number(row.seconds_to_target, "{:.1f} s") or "not reached"


def _coding(row: Standing) -> float | None:
    return None if row.encode_seconds is None else row.encode_seconds + (row.decode_seconds or 0.0)


def number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


def bytes_text(count: float | None) -> str:
    """Three digits and a unit of thousands."""
    if count is None:
        return ""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.3g} {unit}"


def _share(part: float | None, whole: float | None) -> str:
    return f"{100 * part / whole:.0f} %" if part is not None and whole else ""


def _spread(spread: Spread | None, factor: float, form: str, unit: str = "") -> str:
    if spread is None:
        return ""
    text = form.format(factor * spread.mean)
    return text + (f" ± {form.format(factor * spread.deviation)}" if spread.seeds > 1 else "") + unit


_COLUMNS: Mapping[str, Callable[[Standing], str]] = {
    "step": lambda row: milliseconds(row.step_seconds),
    "samples/s": lambda row: number(row.samples_per_second, "{:,.0f}"),
    "mean step": lambda row: milliseconds(row.mean_seconds),
    "speed-up": lambda row: number(row.speed_up, "{:.2f}x"),
    "sent/step": lambda row: bytes_text(row.bytes_per_step),
    "ratio": lambda row: number(row.wire_ratio, "{:.1f}x"),
    "compute": lambda row: _share(row.compute_seconds, row.step_seconds),
    "exposed": lambda row: _share(row.exposed_seconds, row.step_seconds),
    "code": lambda row: _share(_coding(row), row.step_seconds),
    "wire": lambda row: _share(row.communicate_seconds, row.step_seconds),
    "train loss": lambda row: _spread(row.train_loss, 1.0, "{:.3f}"),
    "accuracy": lambda row: _spread(row.accuracy, 100.0, "{:.1f}", " %"),
}
