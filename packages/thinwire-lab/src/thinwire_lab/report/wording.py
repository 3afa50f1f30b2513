"""Figures as people read them."""

import math
import re
from collections.abc import Sequence

LABEL = 18  # characters of a short label


def show_seconds(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds >= 600:
        return f"{seconds / 60:.1f} min"
    return f"{significant(seconds)} s" if seconds >= 1 else f"{significant(seconds * 1e3)} ms"


def show_bytes(count: float | None) -> str:
    if count is None:
        return "–"
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{significant(count / size)} {unit}"
    return f"{count:.0f} B"


def show_times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{significant(ratio, 3 if ratio >= 1 else 2)}×"


def show_percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.2f} %"


def significant(value: float, digits: int = 3) -> str:
    """At least `digits` significant digits, never in powers of ten."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:,.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}".replace(
        ",", "\N{NARROW NO-BREAK SPACE}"
    )


def shortened(text: str, length: int = LABEL) -> str:
    """A label that fits beside a bar; the whole one stands in the table."""
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


_OPTIONS = re.compile(r"(?<=\w)\((?:[^()]|\([^()]*\))*\)")


def row_names(labels: Sequence[str]) -> list[str]:
    """Short labels that differ: without options where that is clear, otherwise cut short, and numbered if need be."""
    bare = [_OPTIONS.sub("", label) for label in labels]
    pairs = zip(bare, labels, strict=True)
    names = [shortened(name if name and bare.count(name) == 1 else label) for name, label in pairs]
    numbers = [names[:place].count(name) + 1 for place, name in enumerate(names)]
    return [
        f"{shortened(name, LABEL - 3)} {number}" if names.count(name) > 1 else name
        for name, number in zip(names, numbers, strict=True)
    ]


def join_words(words: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else ""
