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


OTHERS = [ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "README.md"]


@pytest.mark.parametrize("page", [*pages(), *OTHERS], ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert faults_of(page) == []


def test_every_page_is_in_the_list_of_pages() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / m["target"].partition("#")[0]).resolve() for m in LINK.finditer(index.read_text())}
    docs = {page for page in pages() if page.is_relative_to(ROOT / "docs")} - {index}
    assert docs - linked == set()
