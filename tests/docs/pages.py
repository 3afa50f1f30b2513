"""The pages of documentation and the fenced blocks in them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRELUDES = Path(__file__).parent / "preludes"
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*)\s*$")
MARKER = re.compile(r"^ *<!-- not executed: (?P<reason>.*\S.*) -->$")


@dataclass(frozen=True)
class Block:
    """One fenced block: where it stands, its language and text, and why it is not executed, if it is not."""

    page: str
    line: int
    language: str
    text: str
    reason: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """README, CONTRIBUTING and everything in docs."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_of(page: str, text: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order; a fence that is never closed is an error."""
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        fence = FENCE.match(lines[at])
        at += 1
        if fence is None:
            continue
        opened, indent = at, len(fence["indent"])
        while at < len(lines) and lines[at].strip() != "```":
            at += 1
        if at == len(lines):
            raise AssertionError(f"{page}:{opened}: this block is never closed.")
        body = "\n".join(line[indent:] for line in lines[opened:at]) + "\n"
        marker = MARKER.match(lines[opened - 2]) if opened > 1 else None
        yield Block(page, opened, fence["language"], body, marker["reason"] if marker else None)
        at += 1


def prelude_of(page: str) -> Path | None:
    """What a page takes for granted, as a file of Python that runs before each of its blocks."""
    found = PRELUDES / Path(page).with_suffix(".py")
    return found if found.is_file() else None
