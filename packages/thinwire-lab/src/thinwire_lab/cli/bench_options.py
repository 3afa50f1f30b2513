"""What the commands of `thinwire bench` share: their options, and how they tell what they find."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from thinwire_lab.bench.results import Row

LinksOption = Annotated[
    str | None, typer.Option("--links", "--link", help="Rates of links, one after the other: 1gbit,100mbit,none.")
]
CodecsOption = Annotated[
    str | None, typer.Option(help="Codecs, separated by commas or semicolons outside of parentheses.")
]
OnlyPossibleOption = Annotated[
    bool, typer.Option("--or-loopback", help="Where links cannot be shaped, say so and leave the thin ones out.")
]
TurnsOption = Annotated[int, typer.Option(help="Turns of measuring.", min=1)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the records as JSONL, and write no file.")]
ResumedOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="File for the records; cases that it has already are not measured again (default: a new dated file).",
    ),
]
MarkdownOption = Annotated[
    Path | None,
    typer.Option("--markdown", help="Write the table to this file, too, as Markdown; it grows with each case."),
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="File for the records (default: a dated one in benchmarks/results, or else here)."
    ),
]


class Findings:
    """What one command measures: tables and records appear as soon as they are there, a summary at the end."""

    def __init__(self, name: str, as_json: bool, output: Path | None, resume: bool = False) -> None:
        from rich.console import Console

        from thinwire_lab.bench.results import heading_line, kept_records, results_path
        from thinwire_lab.report.jsonl import end_last_line

        self.as_json = as_json
        self.rows: list[Row] = []
        self.kept = kept_records(output, name) if resume and output is not None else []
        self.path = output or (None if as_json else results_path(name))
        if self.path is not None and self.kept:
            end_last_line(self.path)
        elif self.path is not None:
            self.path.write_text("", encoding="utf-8")
        self.heading = heading_line(name)  # written with the first rows, so that a finished file stays as it is
        if not self.kept:
            self._tell([])
        terminal = Console()
        self.console = terminal if terminal.is_terminal else Console(width=170)
        self.errors = Console(stderr=True)

    @contextmanager
    def progress(self, what: str) -> Iterator[Callable[[str], None]]:
        """A line that says what is being measured, on a terminal."""
        with self.errors.status(what) as status:
            yield lambda news: status.update(f"{what}: {news}")

    def add(self, rows: "Sequence[Row]", table: "Table") -> None:
        from thinwire_lab.bench.results import row_lines

        self.rows += rows
        self._tell(row_lines(rows))
        if not self.as_json:
            self.console.print(table)

    def keep(self, rows: "Sequence[Row]", table: "Table | None") -> None:
        """Rows that the file has already: they count, and are shown."""
        from thinwire_lab.bench.results import row_lines

        self.rows += rows
        if self.as_json:
            typer.echo("\n".join(row_lines(rows)))
        elif table is not None:
            self.console.print(table)

    def end(self, rows: "Sequence[Row]", table: "Table", new: bool) -> None:
        """A closing table; the file gets its rows only if there is something `new` in it."""
        if new:
            self.add(rows, table)
        else:
            self.keep(rows, table)
        self.close()

    def _tell(self, lines: Sequence[str]) -> None:
        if self.heading:
            lines, self.heading = [self.heading, *lines], ""
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.writelines(line + "\n" for line in lines)
        if self.as_json:
            typer.echo("\n".join(lines))

    def close(self) -> None:
        from thinwire_lab.bench.results import missed

        if self.as_json:
            return
        failed, targets = missed(self.rows)
        for what in failed:
            self.console.print(f"[bold red]missed[/]: {what}")
        if targets:
            self.console.print(f"{targets - len(failed)} of {targets} targets met")
        self.console.print(f"the records are in {self.path}", soft_wrap=True)


def chosen_cases(
    models: str, known: Collection[str], links: str | None, usual: Sequence[str], or_loopback: bool
) -> list[tuple[str, str]]:
    """Each model on each link; a model that is not known is refused."""
    from thinwire_lab.bench.results import BenchError, spread

    names = spread(models)
    if unknown := [name for name in names if name not in known]:
        raise BenchError(f"there is no model {unknown[0]!r} to benchmark; known are {', '.join(known)}.")
    return [(name, link) for name in names for link in chosen_links(links, usual, or_loopback)]


def chosen_links(text: str | None, usual: Sequence[str], or_loopback: bool) -> list[str]:
    """The links that are asked for; where none can be shaped, those that need no shaping, if that is wished."""
    from thinwire_lab.bench.results import spread
    from thinwire_lab.lab import why_no_thin_links
    from thinwire_lab.lab.rates import parse_rate

    chosen = spread(text) if text else list(usual)
    thin = [link for link in chosen if parse_rate(link) is not None]
    if or_loopback and thin and (reason := why_no_thin_links()) is not None:
        typer.echo(f"Links cannot be shaped here, so {', '.join(thin)} are left out: {reason}.", err=True)
        return [link for link in chosen if link not in thin]
    return chosen
