"""The benchmark of `auto`: rows, targets, the search, a file that is gone on with, and a run on loopback."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from thinwire.cli import app
from thinwire_lab.bench import auto as measuring
from thinwire_lab.bench.auto import AutoRow, auto_table, bench_auto, summary_table, summed_up
from thinwire_lab.bench.auto_worker import take_turns
from thinwire_lab.bench.markdown import write_auto
from thinwire_lab.bench.results import missed, record_of, restored, row_lines
from thinwire_lab.compare.contenders import parse_contender
from thinwire_lab.recipes.place import Place


def row(plain: float, best: float, auto: float, cost: float = 0.01, plan: str = "bf16") -> AutoRow:
    halves, shown = [plain, 1.02 * plain], {"bf16": best}
    return AutoRow(
        *("vgg", 1000, "1gbit", 4, ["bf16"], plain, halves, "bf16", best, "bf16", best, auto),
        *(plan, "why", cost, shown),
    )


def test_auto_is_judged_against_the_plain_step_and_the_best_one() -> None:
    assert missed([row(1.0, 0.5, 0.52)]) == ([], 3)
    assert missed([row(1.0, 0.5, 0.9)])[0] == ["auto, vgg, 1gbit, step / best step"]
    assert len(missed([row(1.0, 1.2, 1.2, cost=0.03)])[0]) == 3
    assert auto_table([row(1.0, 0.5, 0.9)]).row_count == 1


def test_the_best_is_the_quickest_of_plain_one_codec_and_all_plans() -> None:
    assert row(1.0, 0.5, 0.6).to_best == 1.2
    assert row(1.0, 2.0, 1.1).to_best == 1.1
    assert replace(row(1.0, 0.5, 0.6), codec_seconds=0.4).to_best == pytest.approx(1.5)
    assert row(1.0, 0.5, 0.6).noise == pytest.approx(0.02)


def test_the_closing_table_counts_cases() -> None:
    rows = [row(1.0, 0.5, 0.52), row(1.0, 0.5, 0.6), row(1.0, 1.2, 1.04, plan="none"), row(1.0, 0.9, 1.0, plan="none")]
    found = summed_up(rows)
    assert (found.cases, found.as_plain, found.near_best) == (4, 3, 2)
    assert (found.uncompressed, found.rightly) == (2, 1)
    assert (found.worst, found.cost) == (1.04, [0.01, 0.01])
    assert [met for _, met in record_of(found)["met"].items()] == [False, False]
    assert summary_table(found).row_count == 1


def test_rows_come_back_from_their_records() -> None:
    given = [row(1.0, 0.5, 0.52), row(1.0, 0.5, 0.9)]
    records = [json.loads(line) for line in row_lines([*given, summed_up(given)])]
    assert restored(AutoRow, records) == given


def test_the_page_has_each_case_and_marks_misses(tmp_path: Path) -> None:
    rows = [row(1.0, 0.5, 0.52), replace(row(1.0, 1.2, 1.04, cost=0.03, plan="none"), link="none")]
    write_auto(tmp_path / "auto.md", rows, summed_up(rows))
    lines = (tmp_path / "auto.md").read_text().splitlines()
    assert lines[2] == (
        "| vgg | 1gbit | 1000 ms | 500 ms, `bf16` | 500 ms | 520 ms | `bf16` | 0.52 | 1.04 | 2.0% | 1.0% |"
    )
    assert "| loopback |" in lines[3]
    assert lines[3].endswith("| `none` | **1.04** | 1.04 | 2.0% | **3.0%** |")
    assert lines[5].startswith("1 of 2 cases are at most 1.03 of plain (the worst: 1.04), 2 are within 10 %")


class Counted:
    """A runner that notes when it had its turn."""

    def __init__(self, name: str, order: list[str]) -> None:
        self.name, self.order, self.pace = name, order, 0.5

    def turn(self, batches: object, steps: int) -> None:
        self.order += [f"{self.name}{steps}"]


def test_every_turn_begins_with_another_contender() -> None:
    order: list[str] = []
    runners = {name: Counted(name, order) for name in "abc"}
    take_turns(runners, [], Place(1, 2, torch.device("cpu")))  # type: ignore[arg-type]
    assert "".join(order) == "a2b2c2b2c2a2c2a2b2a2b2c2"


def test_a_file_goes_on_with_the_cases_that_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran: list[tuple[str, str]] = []

    def pretended(name: str, link: str, *_: object) -> AutoRow:
        ran.append((name, link))
        if link == "200mbit":
            raise KeyboardInterrupt
        return replace(row(1.0, 0.5, 0.52), model=name, link=link, candidates=["bf16"])

    monkeypatch.setattr(measuring, "bench_auto", pretended)
    command = ["bench", "auto", "--model", "vgg,gpt", "--codecs", "bf16", "-o", "a.jsonl", "--links"]
    assert CliRunner().invoke(app, [*command, "none,200mbit"]).exit_code != 0
    with Path("a.jsonl").open("a") as file:
        file.write('{"kind": "auto", "mod')  # cut short
    result = CliRunner().invoke(app, [*command, "none,1gbit"])
    assert result.exit_code == 0, result.output
    assert "4 of 4" in result.output
    assert ran == [("vgg", "none"), ("vgg", "200mbit"), ("vgg", "1gbit"), ("gpt", "none"), ("gpt", "1gbit")]
    lines = Path("a.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == [
        *("circumstances", "auto", "circumstances", "auto", "auto", "auto", "auto-summary"),
    ]
    result = CliRunner().invoke(app, [*command, "none", "--markdown", "a.md"])  # all is there: nothing is measured
    assert "4 of 4" in result.output
    assert len(ran) == 5
    assert Path("a.jsonl").read_text().splitlines() == lines
    assert Path("a.md").read_text().count("| vgg |") == 2
    other = CliRunner().invoke(app, [*command, "none", "--hosts", "2"])
    assert other.exit_code == 2
    assert "cases whose hosts are 4, not 2" in other.output
    Path("other.jsonl").write_text('{"kind": "circumstances", "benchmark": "ddp"}\n')
    foreign = CliRunner().invoke(app, [*command[:-2], "other.jsonl", "--links", "none"])
    assert foreign.exit_code == 2
    assert "was not begun by `thinwire bench auto`" in foreign.output


def test_auto_is_a_contender() -> None:
    contender = parse_contender("auto(quality=bold)")
    assert contender.auto
    assert contender.plan is None
    assert contender.codec == "auto(quality=bold)"


@pytest.mark.distributed
@pytest.mark.timeout(240)
def test_a_run_on_loopback() -> None:
    found = bench_auto("vgg", "none", hosts=2, codecs=["bf16"])
    assert found.codec == "bf16"  # the only candidate; plans by layer made of it may be searched too, and be quicker
    assert {found.codec, found.best} <= found.searched.keys()
    assert found.reason
    assert min(found.plain, found.auto, found.best_seconds, *found.halves) > 0
    assert min(found.halves) <= found.plain <= max(found.halves)
