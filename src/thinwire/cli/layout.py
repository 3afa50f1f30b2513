"""Text for terminals: columns whose last cell wraps, and marks that every encoding has."""

import shutil
import sys
import textwrap
from collections.abc import Sequence

WIDEST = 120  # longer lines are hard to read
NARROWEST = 24  # columns for the cell that wraps; a terminal with fewer folds the lines itself
UNICODE_MARKS = {"ok": "✓", "warning": "!", "error": "✗"}
ASCII_MARKS = {"ok": "+", "warning": "!", "error": "x"}


def terminal_width() -> int:
    """Columns of the terminal, or of a page where the output goes elsewhere."""
    return min(shutil.get_terminal_size((100, 24)).columns, WIDEST)


def columns(rows: Sequence[Sequence[str]], width: int, indent: int = 0, right: int | None = None) -> list[str]:
    """Lines of a table: all cells keep their width but the last, which wraps below its own beginning.

    `right` is the column that is aligned to the right. A line break in the last cell stays one.
    """
    widths = [max(len(cell) for cell in cells) for cells in list(zip(*rows, strict=True))[:-1]]
    lines: list[str] = []
    for row in rows:
        kept = enumerate(zip(row[:-1], widths, strict=True))
        cells = [cell.rjust(w) if i == right else cell.ljust(w) for i, (cell, w) in kept]
        head = " " * indent + "".join(f"{cell}  " for cell in cells)
        lines += wrapped(row[-1], max(width, len(head) + NARROWEST), head, " " * len(head))
    return lines


def wrapped(text: str, width: int, first: str = "", then: str = "") -> list[str]:
    """The lines of a text within the width, the first behind `first`, the others behind `then`."""
    lines: list[str] = []
    for part in text.split("\n"):
        start = then if lines else first
        found = textwrap.wrap(part, width, initial_indent=start, subsequent_indent=then, break_on_hyphens=False)
        lines += found or [start.rstrip()]
    return lines


def marks() -> dict[str, str]:
    """Marks for what is right, what deserves a look and what is wrong, in characters that standard output can show."""
    try:
        "".join(UNICODE_MARKS.values()).encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII_MARKS
    return UNICODE_MARKS
