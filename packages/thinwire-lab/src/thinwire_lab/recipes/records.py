"""Where a run leaves its figures: one JSON object a line, and a bar on the terminal."""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from thinwire_lab.report.jsonl import line_error, read_lines, to_line

Record = dict[str, object]
WRITER = "thinwire train --metrics"


def read_records(path: Path) -> list[Record]:
    """All complete records of a metrics file; a last line cut short by a crash is left out."""
    records: list[Record] = []
    for number, record in read_lines(path, WRITER):
        step = record.get("step") if isinstance(record, dict) else None
        if type(step) is not int:
            raise line_error(path, number, "a record is an object with a whole number 'step'", WRITER)
        records.append(record)
    return records


class Recorder:
    """Writes records to a file and the newest to a progress bar; either can be absent.

    A resumed run goes on in the same file: records later than the step it resumes from are dropped, because the steps
    they describe are done again.
    """

    def __init__(self, path: Path | None, *, steps: int | None, start: int, title: str, bar: bool) -> None:
        self._file: IO[str] | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            kept = [r for r in read_records(path) if int(str(r["step"])) <= start] if start and path.exists() else []
            self._file = path.open("w")
            for record in kept:
                self.write(record)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, TextColumn("{task.fields[figures]}"), disable=not bar)
        self._task = self._bar.add_task(title, total=steps, completed=start, figures="")

    def write(self, record: Mapping[str, object]) -> None:
        if self._file is not None:
            self._file.write(to_line(record) + "\n")
            self._file.flush()

    def advance(self, step: int, record: Mapping[str, object] | None) -> None:
        """Called after every step; with a record on those that are logged."""
        figures = {}
        if record is not None:
            self.write(record)
            figures["figures"] = f"loss {record['loss']:.3f}  {record['samples_per_s']:.0f} samples/s"
        self._bar.update(self._task, completed=step, **figures)  # type: ignore[arg-type]  # Rich types fields as Any

    def __enter__(self) -> "Recorder":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, reason: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        if self._file is not None:
            self._file.close()
