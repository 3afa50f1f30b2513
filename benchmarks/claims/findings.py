"""What the check of the papers' claims finds: claims with figures, tables, and sentences on where a method loses."""

from collections.abc import Sequence
from dataclasses import dataclass, field

HOLDS, PARTLY, FAILS, UNMEASURED = "holds", "in part", "does not hold", "not measured"


@dataclass(frozen=True)
class Claim:
    """One claim of a paper: what it reports, and what comes out here."""

    paper: str
    claim: str
    reported: str
    measured: str
    verdict: str


@dataclass(frozen=True)
class Figures:
    """A table, with a caption that says what its numbers are."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass
class Finding:
    """All that one measurement says; `plot` is the name of its picture."""

    key: str
    title: str
    claims: list[Claim] = field(default_factory=list)
    figures: list[Figures] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    plot: str | None = None
    explanation: str = ""


def verdict(holds: Sequence[bool]) -> str:
    """One word for several cases of the same claim."""
    return HOLDS if all(holds) else PARTLY if any(holds) else FAILS


def percent(share: float) -> str:
    """One decimal place, but no empty zeros and no false precision."""
    form = ".1g" if share < 0.0005 else ".1f" if share < 0.995 else ".0f"
    return f"{100 * share:{form}} %"


def short(value: float) -> str:
    """Three digits, and no more zeros than needed."""
    return f"{value:.3g}"
