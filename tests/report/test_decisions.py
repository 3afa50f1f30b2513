"""What `auto` decided, on the page and in Markdown."""

from pathlib import Path

from tests.report.made_up import WAYS, write_results
from tests.report.test_record import a_decision
from thinwire_lab.report.contenders import read_contenders
from thinwire_lab.report.decisions import COLUMNS, decision_rows, decisions_html, decisions_markdown
from thinwire_lab.report.markdown import write_markdown
from thinwire_lab.report.page import write_page

HOSTILE = "<script>alert(1)</script>"


def results_of(folder: Path, *decisions: str) -> Path:
    extra = [a_decision("qsgd #0", reason=reason) for reason in decisions]
    return write_results(folder / "r.jsonl", WAYS[:3], steps=20, seeds=1, extra=list(extra))


def test_each_decision_is_a_row(tmp_path: Path) -> None:
    rows = decision_rows(read_contenders(results_of(tmp_path, "first", "second")))
    assert rows[0] == ["qsgd #0", "24", "qsgd(bits=4)", "200 ms", "75.00 %", "qsgd(bits=4) 100 ms", "first"]
    assert [row[-1] for row in rows] == ["first", "second"]


def test_a_long_plan_is_cut(tmp_path: Path) -> None:
    plan = "{" + ", ".join(f"layer{i}.weight: qsgd(bits=4)" for i in range(9)) + "}"
    results = write_results(tmp_path / "r.jsonl", WAYS[:3], steps=20, seeds=1, extra=[a_decision("qsgd #0", plan)])
    (row,) = decision_rows(read_contenders(results))
    assert len(row[2]) == 60
    assert row[2].endswith("...")


def test_the_page_and_the_markdown_have_them(tmp_path: Path) -> None:
    results = results_of(tmp_path, f"a | b {HOSTILE}")
    write_page(results, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "What auto decided" in page
    assert "a | b &lt;script&gt;alert(1)" in page
    assert HOSTILE not in page
    write_markdown(results, tmp_path / "r.md")
    section = (tmp_path / "r.md").read_text(encoding="utf-8").partition("## What auto decided")[2].partition("##")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    assert len(rows) == 3
    assert {row.replace(r"\|", "").count("|") for row in rows} == {len(COLUMNS) + 1}


def test_without_decisions_nothing_is_shown(tmp_path: Path) -> None:
    contenders = read_contenders(results_of(tmp_path))
    assert decisions_html(contenders) == ""
    assert decisions_markdown(contenders) == []
