"""What a benchmark leaves: figures beside their targets on the terminal, and a dated file of records.

A file is JSONL. Its first record has machine, versions and command; every other one is a row of a table.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from thinwire.errors import ThinwireError
from thinwire_lab.bench.timing import circumstances
from thinwire_lab.report.jsonl import read_lines

if TYPE_CHECKING:
    from rich.table import Table

T = TypeVar("T")

FOLDER = Path("benchmarks") / "results"


class BenchError(ThinwireError, RuntimeError):
    """A benchmark that cannot be run as it was asked for."""


@dataclass(frozen=True)
class Target:
    """Where a figure must come out: at least this, or at most this."""

    value: float
    at_most: bool = False

    def met(self, figure: float) -> bool:
        return figure <= self.value if self.at_most else figure >= self.value


def at_least(value: float) -> Target:
    return Target(value)


def at_most(value: float) -> Target:
    return Target(value, at_most=True)


def beside_target(figure: float, target: Target | None) -> str:
    """The figure, and its target as a comparison that is true: `0.72 ≥ 0.7`, or in red `0.61 < 0.7`."""
    shown = f"{round(figure, 2) + 0.0:.2f}"  # no negative zero
    if target is None:
        return shown
    met = target.met(figure)
    sign = ("≤" if met else ">") if target.at_most else ("≥" if met else "<")
    text = f"{shown} {sign} {target.value:g}"
    return text if met else f"[bold red]{text}[/]"


class Row(Protocol):
    """One line of a table, and one record of a file."""

    kind: ClassVar[str]

    @property
    def title(self) -> str:
        """What was measured."""

    def judged(self) -> list[tuple[str, float | None, Target | None]]:
        """Figures that may have a target; None: not measured, or nothing to reach."""


def verdicts(row: Row) -> dict[str, bool]:
    """What had a target, and whether it was met."""
    return {what: aim.met(value) for what, value, aim in row.judged() if aim is not None and value is not None}


def record_of(row: Row) -> dict[str, Any]:
    """A row as JSON: its fields, targets as numbers, and which of them were met."""
    fields = asdict(row)  # type: ignore[call-overload]  # rows are dataclasses, which no protocol can say
    targets = {name: value["value"] for name, value in fields.items() if _is_target(value)}
    return {"kind": row.kind, **fields, **targets, "met": verdicts(row)}


def _is_target(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"value", "at_most"}


def missed(rows: Iterable[Row]) -> tuple[list[str], int]:
    """The targets that were missed, and how many there were in all."""
    found = [(f"{row.title}, {what}", met) for row in rows for what, met in verdicts(row).items()]
    return [what for what, met in found if not met], len(found)


def results_path(name: str) -> Path:
    """A new file of today for this benchmark: among the results of this repository, else in the current folder."""
    place = FOLDER if FOLDER.is_dir() else Path()
    stem = f"{datetime.now(timezone.utc):%Y-%m-%d}-{name}"
    numbered = (place / f"{stem}{'' if n == 1 else f'-{n}'}.jsonl" for n in count(1))
    return next(path for path in numbered if not path.exists())


def heading_line(name: str) -> str:
    """The first record of a file."""
    return json.dumps({"kind": "circumstances", "benchmark": name, **circumstances()}, ensure_ascii=False)


def row_lines(rows: Sequence[Row]) -> list[str]:
    """The other records."""
    return [json.dumps(record_of(row), ensure_ascii=False) for row in rows]


def kept_records(path: Path, name: str) -> list[dict[str, Any]]:
    """The records of a file that a benchmark of this name has begun, or none; another file is refused."""
    if not path.exists() or not path.stat().st_size:
        return []
    records = [record for _, record in read_lines(path, f"thinwire bench {name}") if isinstance(record, dict)]
    if not records or records[0].get("benchmark") != name:
        raise BenchError(f"{path} was not begun by `thinwire bench {name}`; give another -o.")
    return records


def restored(kind: type[T], records: Iterable[Mapping[str, Any]]) -> list[T]:
    """The rows of one kind among records; their targets are those of today."""
    names = [f.name for f in fields(kind) if not isinstance(f.default, Target)]  # type: ignore[arg-type]  # as above
    try:
        return [
            kind(**{name: record[name] for name in names})
            for record in records
            if record["kind"] == kind.kind  # type: ignore[attr-defined]  # a row
        ]
    except KeyError as missing:
        raise BenchError(f"the records are of an earlier version: they have no {missing}; give another -o.") from None


def check_settings(path: Path | None, theirs: Mapping[str, object], ours: Mapping[str, object]) -> None:
    """Refuse to go on with a file whose cases were measured in another way."""
    for name, value in ours.items():
        if theirs[name] != value:
            raise BenchError(
                f"{path} has cases whose {name} are {theirs[name]}, not {value}; go on with its own settings, or give"
                " another -o."
            )


def columns(table: "Table", names: Sequence[str], left: int = 1) -> "Table":
    """Give a table its columns: the first `left` are names, the others figures."""
    for at, name in enumerate(names):
        table.add_column(name, justify="left" if at < left else "right", no_wrap=at < left)
    return table


def spread(text: str) -> list[str]:
    """The parts of a list with commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def parse_sizes(text: str) -> list[int]:
    """Bytes of sizes such as `4k,256k,64m`."""
    units = {"k": 2**10, "m": 2**20, "g": 2**30}
    sizes = []
    for part in spread(text.lower()):
        number, unit = (part[:-1], units[part[-1]]) if part[-1] in units else (part, 1)
        if not number.isdigit() or int(number) * unit < 4:
            raise BenchError(f"a size is bytes with k, m or g behind, 4 at least, not {part!r}; write 4k,256k,64m.")
        sizes.append(int(number) * unit)
    return sizes


def parse_counts(text: str, what: str) -> list[int]:
    """Whole numbers of at least 1 with commas between them."""
    parts = spread(text)
    if not parts or any(not part.isdigit() or int(part) < 1 for part in parts):
        raise BenchError(f"{what} are whole numbers from 1 on with commas, not {text!r}; write 1,2.")
    return [int(part) for part in parts]


def show_size(size: int) -> str:
    """4096 as `4 KiB`."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} B"
