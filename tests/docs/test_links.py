"""Links inside the documentation lead somewhere, and every page is linked from the list of pages."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, pages

LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ (?P<text>.+)$", re.MULTILINE)
FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


def anchor(heading: str) -> str:
    """The name that a heading has in links: lower case, without marks, spaces as hyphens."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def faults_of(page: Path) -> list[str]:
    faults = []
    for match in LINK.finditer(FENCED.sub("", page.read_text(encoding="utf-8"))):
        target, _, part = match["target"].partition("#")
        if "://" in target:
            continue
        goal = (page.parent / target).resolve() if target else page
        anchors = {anchor(h) for h in HEADING.findall(goal.read_text(encoding="utf-8"))} if goal.suffix == ".md" else {}
        if not goal.exists() or (part and part not in anchors):
            faults.append(match["target"])
    return faults


PROJECT = ("CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
OTHERS = [ROOT / name for name in (*PROJECT, "benchmarks/README.md", "packages/thinwire-lab/README.md")]
ITEM = re.compile(r"^ {0,3}(?:[-*]|\d+\.) ")


def crowded_lists(text: str) -> list[int]:
    """Items right below a paragraph, outside or inside a list: GitHub shows an item there, the site shows text."""
    lines, faults = [*FENCED.sub(lambda block: "\n" * block[0].count("\n"), text).splitlines()], []
    inside = parted = False  # in a list; behind an empty line in its item
    for at, line in enumerate(lines):
        begins = bool(ITEM.match(line))
        if begins and (not inside or parted) and at > 0 and lines[at - 1].strip():
            faults.append(at + 1)
        inside = begins or (inside and (not line.strip() or line.startswith("  ")))
        parted = inside and not begins and (parted or not line.strip())
    return faults


@pytest.mark.parametrize("page", [*pages(), *OTHERS], ids=lambda p: str(p.relative_to(ROOT)))
def test_lists_begin_behind_an_empty_line(page: Path) -> None:
    assert crowded_lists(page.read_text(encoding="utf-8")) == []


def test_a_crowded_list_is_found() -> None:
    assert crowded_lists("Text:\n- one\n- two\n") == [2]
    assert crowded_lists("- one\n\n    more\n- two\n") == [4]
    assert crowded_lists("Text:\n\n- one\n  more\n- two\n\n```sh\nx\n- y\n```\n") == []


@pytest.mark.parametrize("page", [*pages(), *OTHERS], ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert faults_of(page) == []


def test_every_page_is_in_the_list_of_pages() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / m["target"].partition("#")[0]).resolve() for m in LINK.finditer(index.read_text())}
    docs = {page for page in pages() if page.is_relative_to(ROOT / "docs")} - {index}
    assert docs - linked == set()
