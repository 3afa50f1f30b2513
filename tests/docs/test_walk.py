"""The walk in the design page names files and functions that exist, and passes few files."""

import re
from importlib import import_module

from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([\w/]+)\.py` \| `([\w.]+)` \|", re.MULTILINE)
MOST_FILES = 12  # a gradient passes between DDP's hook and the wire, for the longest of the three walks


def walks() -> dict[str, list[tuple[str, str]]]:
    """The rows of each walk, by its heading."""
    section = PAGE.partition("\n## The walk")[2].partition("\n## ")[0]
    parts = re.split(r"^### ", section, flags=re.MULTILINE)[1:]
    return {part.splitlines()[0]: ROW.findall(part) for part in parts}


def test_the_functions_of_the_walk_exist() -> None:
    rows = [row for walk in walks().values() for row in walk]
    assert len(rows) > 20
    for file, function in rows:
        found = import_module("thinwire." + file.replace("/", "."))
        for name in function.split("."):
            found = getattr(found, name)
        assert callable(found)


def test_a_gradient_passes_few_files() -> None:
    first, *others = walks().values()
    assert len({file for file, _ in first}) <= MOST_FILES
    way = {file for file, _ in first[:4]}
    assert all(len(way | {file for file, _ in walk}) <= MOST_FILES for walk in others)
