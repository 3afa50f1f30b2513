"""The table as Markdown: every contender, who loses, and nothing that is not in the results."""

from pathlib import Path

import pytest

from tests.report.made_up import WAYS, Way, failed_run, run_of, write_results
from tests.report.test_record import a_run, an_end
from thinwire_lab.report.markdown import write_markdown
from thinwire_lab.report.record import Writer


def markdown_of(folder: Path, results: Path) -> str:
    write_markdown(results, folder / "new" / "table.md")
    return (folder / "new" / "table.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("markdown")
    chained = Way("topk(density=0.1) | fp16", "topk(density=0.1) | fp16", 9, 0.01, 0.2)
    extra = [*failed_run("powersgd", "the link went away"), run_of(Way("slow", "slow", 1, 0, 0), 0, 9)]
    return markdown_of(folder, write_results(folder / "r.jsonl", (*WAYS, chained), steps=40, extra=extra))


def test_rows_have_equal_cells_and_the_fastest_is_first(text: str) -> None:
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.replace(r"\|", "").count("|") for line in rows} == {12}
    assert len(rows) == 2 + len(WAYS) + 3
    assert rows[2].startswith("| `topk(density=0.1)")
    assert [row.split("`")[1] for row in rows[2:]][-4:-2] == ["gradiveq", "adacomp"]  # who loses accuracy comes last
    assert any(line.startswith("| `powersgd` | failed |") for line in rows[-2:])


def test_losing_cases_are_told_with_their_figures(text: str) -> None:
    losers = text.partition("## Who loses")[2].partition("## How")[0]
    assert "`adacomp` is slower than uncompressed training: 0.82× its speed." in losers
    assert "`adacomp` does not count: 1.9 points less accurate than none." in losers
    assert "`powersgd` failed: the link went away" in losers
    assert "slow #0 is not finished." in losers
    assert "`qsgd`" not in losers


def test_it_can_be_repeated(text: str) -> None:
    assert "thinwire compare --hosts 4 --link 100mbit --seeds 2" in text
    assert "torch 2.13.0" in text
    assert "memory 8.0 GiB" in text


def test_momentum_in_the_chain_is_marked_and_nobody_may_lose(tmp_path: Path) -> None:
    with Writer(tmp_path / "r.jsonl") as writer:
        for run in (a_run("none"), a_run("dgc", momentum="chain")):
            writer.write(run)
            writer.write(an_end(run.label, steps=2, seconds=4.0, step_seconds=2.0))
    text = markdown_of(tmp_path, tmp_path / "r.jsonl")
    assert "`dgc` †" in text
    assert "`none` †" not in text
    assert "- nobody" in text


def test_empty_results(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").touch()
    assert markdown_of(tmp_path, tmp_path / "r.jsonl") == "# A comparison without runs\n"
