"""Figures that README and the page on choosing repeat are those of the results and of the codecs."""

import re

import pytest

from benchmarks.evidence.runs import read_runs
from benchmarks.evidence.table import SYSTEMS, table
from tests.docs.pages import ROOT
from thinwire import Codec

README = (ROOT / "README.md").read_text(encoding="utf-8")
CHOOSING = (ROOT / "docs" / "choosing-a-codec.md").read_text(encoding="utf-8")
COMPARISON = (ROOT / "docs" / "results" / "comparison.md").read_text(encoding="utf-8")


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the table under a heading, without its first two lines."""
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def codes(cell: str) -> list[str]:
    return [code.replace("\\|", "|") for code in re.findall(r"`([^`]+)`", cell)]


def measured() -> dict[str, list[str]]:
    lines = [line for line in COMPARISON.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return {codes(row[0])[0]: row for row in cells}


def test_the_results_of_readme_are_those_of_the_comparison() -> None:
    shown = rows(README, "Results")
    assert {codes(row[0])[0] for row in shown} == set(measured())
    for name, step, speed_up, ratio, accuracy, points in shown:
        row = measured()[codes(name)[0]]
        assert step == row[7]
        assert float(speed_up.split()[0]) == float(row[3].rstrip("×"))
        assert float(ratio.split()[0]) == pytest.approx(float(row[4].rstrip("×")), abs=0.05)
        assert accuracy == row[1].removesuffix(" %")
        assert points.strip("*") == row[2]


def test_the_figures_with_adamw_are_those_of_the_evidence() -> None:
    evidence = (ROOT / "docs" / "results" / "evidence.md").read_text(encoding="utf-8")
    found: dict[str, list[tuple[str, str]]] = {}
    for line in evidence.splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            found.setdefault(codes(cells[0])[0], []).append((cells[2], cells[3]))
    tables = [rows(CHOOSING, "With Adam")]
    assert all(tables)
    shown = [row for table in tables for row in table if codes(row[0])]  # not the heads of further tables
    for name, ratio, figure, *_ in shown:
        assert (ratio, figure) in found[codes(name)[0]], name


def test_rows_of_the_short_table_in_readme_are_those_that_the_command_prints() -> None:
    printed = table(read_runs(ROOT / "docs" / "results" / "evidence.jsonl")).splitlines()
    begins = tuple(f"| {system}, " for system in SYSTEMS)
    assert any(line.startswith(begins) for line in printed)
    assert {line for line in README.splitlines() if line.startswith(begins)} <= set(printed)


def ratio_of(codec: str) -> float:
    """Bytes of an fp32 all-reduce over those of this codec: a matrix of 1024 x 1024, 4 ranks."""
    shape = (1024, 1024)
    return Codec().wire_bytes(shape, 4) / Codec.parse(codec).wire_bytes(shape, 4)


def stated(heading: str, text: str, names: int, ratios: int) -> list[tuple[str, float]]:
    """Each codec of a table with the ratio that stands in its row: one for all of them, or one for each."""
    found: list[tuple[str, float]] = []
    for row in rows(text, heading):
        figures = [float(figure) for figure in re.findall(r"[\d.]+", row[ratios])]
        chains = codes(row[names])
        found += zip(chains, figures if len(figures) > 1 else figures * len(chains), strict=True)
    return found


@pytest.mark.parametrize(
    ("codec", "ratio"),
    [*stated("Systems", README, 0, 2), *stated("Then: how many times fewer bytes?", CHOOSING, 1, 2)],
)
def test_ratios_are_those_of_the_codecs(codec: str, ratio: float) -> None:
    assert ratio_of(codec) == pytest.approx(ratio, rel=0.03)
