"""A comparison on the terminal: a table that lives while it runs, and the one that stays.

Both fit the width of the terminal: labels are short, with the chains in full below, and columns that have no room are
left out, the least important first.
"""

import time
from collections.abc import Callable, Mapping, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from thinwire_lab.compare.session import Comparison
from thinwire_lab.compare.story import links_text
from thinwire_lab.report.record import Record, Run, RunLog, Summary
from thinwire_lab.report.standings import Spread, Standing, plain_standing, ranking
from thinwire_lab.report.wording import row_names

PADDING, EDGES = 2, 1  # columns of the terminal between two columns of a table, and at its ends


class Board:
    """Who is where: rendered anew for each frame from the records so far."""

    def __init__(
        self, comparison: Comparison, logs: Sequence[RunLog] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.comparison, self._clock = comparison, clock
        self.runs = [trial.run for trial, _ in comparison.trials()]
        self.logs: dict[str, RunLog] = {log.run.run: log for log in logs}
        self._began: float | None = None  # when the first run of this session began: a launch takes a while
        self._before = {run for run in self.runs if self._share(run) == 1.0}  # runs of an earlier session

    def hear(self, record: Record) -> None:
        if isinstance(record, Run):
            self._began = self._clock() if self._began is None else self._began
            self._before.discard(record.run)  # it failed then, and is done again
            self.logs[record.run] = RunLog(record)
        else:
            self.logs[record.run].add(record)

    def finished(self) -> list[RunLog]:
        """All logs in the order of the comparison."""
        return [self.logs[run] for run in self.runs if run in self.logs]

    def progress_line(self) -> str:
        """How many runs are done, and how long the rest will take if it goes on like this."""
        shares = [self._share(run) for run in self.runs]
        done, made = sum(share == 1.0 for share in shares), sum(shares) - len(self._before)
        left = len(shares) - len(self._before) - made
        told = f"{done} of {len(shares)} runs done"
        if self._began is None or made <= 0 or left <= 0:
            return told
        return f"{told}, about {duration((self._clock() - self._began) * left / made)} left"

    def _share(self, run: str) -> float:
        """How much of a run is done; all of it once there is a summary, even of a failure."""
        log, comparison = self.logs.get(run), self.comparison
        if log is None:
            return 0.0
        if log.summary is not None:
            return 1.0
        if not log.steps:
            return 0.0
        last = log.steps[-1]
        whole = last.step / comparison.recipe.steps if comparison.seconds is None else last.seconds / comparison.seconds
        return min(0.99, whole)  # the last evaluation is still to come

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        trials = self.comparison.trials()
        names = dict(zip(_labels(self.comparison), row_names(_labels(self.comparison)), strict=True))
        failed = {log.run.label: log.summary.error for log in self.logs.values() if log.summary and log.summary.error}
        rows = []
        for trial, contender in trials:
            log = self.logs.get(trial.run)
            state = "[dim]left out[/]" if contender.text in failed else "[dim]waits[/]"
            cells = self._cells(log) if log is not None else {"state": state}
            seed = {"seed": str(trial.seed)} if self.comparison.seeds > 1 else {}
            rows.append({"codec": escape(names[contender.text])} | seed | cells)
        columns = [
            "codec",
            *["seed"] * (self.comparison.seeds > 1),
            "state",
            "done",
            "accuracy",
            "step time",
            "loss",
            "sent/step",
        ]
        table = fitted_table(columns, [(row, "") for row in rows], options.max_width, place_line(self.comparison))
        below = [f"{names[label]} failed: {error}" for label, error in failed.items()]
        yield Group(table, *(Text(line, style="red") for line in below), Text(self.progress_line()))

    def _cells(self, log: RunLog) -> dict[str, str]:
        state = {"state": state_of(log)}
        if not log.steps:
            return state
        last, comparison = log.steps[-1], self.comparison
        times = sorted(step.step_seconds for step in log.steps)
        by_steps = f"{last.step}/{comparison.recipe.steps}"
        return state | {
            "done": by_steps if comparison.seconds is None else f"{last.seconds:.1f}/{comparison.seconds:g} s",
            "accuracy": f"{100 * log.evals[-1].accuracy:.1f} %" if log.evals else "",
            "step time": milliseconds(times[len(times) // 2]),
            "loss": number(last.loss, "{:.3f}"),
            "sent/step": bytes_text(last.bytes_sent),
        }


def _labels(comparison: Comparison) -> list[str]:
    return [contender.text for contender in comparison.contenders]


def fitted_table(
    columns: Sequence[str], rows: Sequence[tuple[Mapping[str, str], str]], width: int, title: str
) -> Table:
    """A table of as many columns, from the first, as fit; a row is its cells by column, and its style."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    used = EDGES
    for column in columns:
        longest = max([len(column), *(Text.from_markup(cells.get(column, "")).cell_len for cells, _ in rows)])
        used += longest + PADDING
        if used > width:
            break
        table.add_column(column, justify="left" if column in ("codec", "state") else "right", no_wrap=True)
    for cells, style in rows:
        table.add_row(*(cells.get(str(column.header), "") for column in table.columns), style=style)
    return table


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def state_of(log: RunLog) -> str:
    if log.summary is None:
        return "[yellow]trains[/]" if log.steps else "starts"
    return "[green]done[/]" if log.summary.error is None else "[red]failed[/]"


def place_line(comparison: Comparison) -> str:
    lab, recipe = comparison.lab, comparison.recipe
    latency = f" and {lab.latency} latency" if lab.delay else ""
    ranks = f" with {comparison.procs_per_host} ranks each" if comparison.procs_per_host > 1 else ""
    length = f"{recipe.steps} steps" if comparison.seconds is None else f"{comparison.seconds:g} s"
    place = f"{lab.hosts} hosts{ranks}, {links_text(comparison)}{latency}"
    return f"{comparison.recipe_name} ({recipe.model}) on {place}, {length} each"


def run_line(summary: Summary) -> str:
    """A finished run, where there is no terminal for a live table."""
    if summary.error is not None:
        return f"{summary.run}: failed: {summary.error}"
    accuracy = f", accuracy {100 * summary.accuracy:.1f} %" if summary.accuracy is not None else ""
    sent = f", {bytes_text(summary.bytes_per_step)} sent" if summary.bytes_per_step is not None else ""
    return f"{summary.run}: {summary.steps} steps, {milliseconds(summary.step_seconds)} a step{sent}{accuracy}"


def final_table(rows: Sequence[Standing], title: str, target: float | None = None, width: int = 80) -> Table:
    """A row for each contender that ended well, the best first; who does not count is dim."""
    names = dict(zip((row.label for row in rows), row_names([row.label for row in rows]), strict=True))
    ended = sorted((row for row in rows if row.runs), key=ranking)
    cells = dict(_COLUMNS)
    if target is None:
        del cells[_TARGET]
    heads = {name: f"to {100 * (target or 0.0):g} %" if name == _TARGET else name for name in cells}
    shown = [
        (
            {"codec": escape(names[row.label])} | {heads[name]: cell(row) for name, cell in cells.items()},
            _style(row, ended),
        )
        for row in ended
    ]
    return fitted_table(["codec", *heads.values()], shown, width, title)


def _style(row: Standing, ended: Sequence[Standing]) -> str:
    """Green for the best, if it is better than uncompressed training."""
    if row.shortfall:
        return "dim"
    plain = plain_standing(ended)
    return "bold green" if row is ended[0] and plain is not None and row is not plain else ""


def notes_below(rows: Sequence[Standing]) -> list[str]:
    """The chains of short labels, the reasons of those that do not count, and where momentum is."""
    labels = [row.label for row in rows]
    named = list(zip(row_names(labels), rows, strict=True))
    chains = [f"{name} = {row.label}" for name, row in named if name != row.label]
    uncounted = [f"{name} does not count: {row.shortfall}." for name, row in named if row.shortfall]
    momentum = [name for name, row in named if row.momentum == "chain"]
    told = [f"Momentum is in the chain, not in the optimiser: {', '.join(momentum)}."] if momentum else []
    return [*chains, *uncounted, *told]


def failed_lines(rows: Sequence[Standing]) -> list[str]:
    """One line for each contender of which a run failed."""
    return [f"{row.label} failed: {row.error}" for row in rows if row.error is not None]


def _to_target(row: Standing) -> str:
    return number(row.seconds_to_target, "{:.1f} s") or "missed"


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


_TARGET = "to target"
_COLUMNS: Mapping[str, Callable[[Standing], str]] = {  # the most important first
    "accuracy": lambda row: _spread(row.accuracy, 100.0, "{:.1f}", " %"),
    _TARGET: _to_target,
    "speed-up": lambda row: number(row.speed_up, "{:.2f}x"),
    "ratio": lambda row: number(row.wire_ratio, "{:.1f}x"),
    "steps": lambda row: number(row.steps, "{:.0f}"),
    "sent/step": lambda row: bytes_text(row.bytes_per_step),
    "mean step": lambda row: milliseconds(row.mean_seconds),
    "step": lambda row: milliseconds(row.step_seconds),
    "train loss": lambda row: _spread(row.train_loss, 1.0, "{:.3f}"),
    "compute": lambda row: _share(row.compute_seconds, row.step_seconds),
    "exposed": lambda row: _share(row.exposed_seconds, row.step_seconds),
    "code": lambda row: _share(_coding(row), row.step_seconds),
    "wire": lambda row: _share(row.communicate_seconds, row.step_seconds),
    "samples/s": lambda row: number(row.samples_per_second, "{:,.0f}"),
}
