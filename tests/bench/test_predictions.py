"""Predictions beside measurements: errors, targets, and whether the fastest codec was found."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from thinwire.cli import app
from thinwire_lab.bench import predictions as measuring
from thinwire_lab.bench.markdown import write_predictions
from thinwire_lab.bench.predictions import PredictionRow, predictions_table, summary_table, summed_up
from thinwire_lab.bench.results import at_most, missed, record_of


def row(codec: str, measured: float, predicted: float, link: str = "1gbit") -> PredictionRow:
    return PredictionRow("vgg", 1000, link, 4, codec, measured, predicted, 100, 100, at_most(0.3))


def test_errors_are_relative_to_what_was_measured() -> None:
    assert round(row("qsgd", 0.2, 0.25).error, 6) == 0.25
    assert round(row("qsgd", 0.2, 0.15).error, 6) == -0.25


def test_a_miss_is_a_miss_in_both_directions() -> None:
    rows = [row("none", 0.1, 0.12), row("qsgd", 0.1, 0.14), row("bf16", 0.1, 0.06)]
    failed, targets = missed(rows)
    assert targets == 3
    assert [what.partition(",")[0] for what in failed] == ["qsgd", "bf16"]
    assert record_of(rows[1])["met"] == {"error of the prediction": False}
    assert predictions_table(rows).row_count == 3


def test_the_choice_is_right_if_it_is_nearly_the_fastest() -> None:
    right = [row("none", 0.30, 0.30), row("qsgd", 0.105, 0.09), row("bf16", 0.100, 0.11)]
    wrong = [row("none", 0.30, 0.05, "none"), row("qsgd", 0.10, 0.20, "none")]
    summary = summed_up([*right, *wrong])
    assert (summary.right_choices, summary.choices, summary.count) == (1, 2, 5)
    assert round(summary.worst, 6) == 1.0
    assert list(summary.misses) == ["qsgd, vgg, none", "none, vgg, none"]
    assert summary_table(summary).row_count == 1
    assert "qsgd, vgg, none: +100%\nnone, vgg, none: -83%" in str(summary_table(summary).caption)


def test_the_page_has_a_line_for_each_case_and_marks_misses(tmp_path: Path) -> None:
    rows = [
        row("none", 0.1, 0.12),
        row("bf16", 0.1, 0.06),
        row("none", 0.2, 0.2, "none"),
        row("bf16", 0.1, 0.1, "none"),
    ]
    write_predictions(tmp_path / "p.md", rows, summed_up(rows))
    lines = (tmp_path / "p.md").read_text().splitlines()
    assert lines[0] == "| model | link | plain step | `none` | `bf16` |"
    assert lines[2:4] == ["| vgg | 1gbit | 100 ms | +20% | **-40%** |", "| vgg | loopback | 200 ms | +0% | +0% |"]
    assert "the median error is 10.0% (target 15%), the worst 40% (target 30%); 1 are beyond 30%" in lines[5]
    assert lines[-1] == "Misses: bf16, vgg, 1gbit -40%."


def test_a_file_goes_on_with_the_cases_that_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = []

    def pretended(name: str, workload: object, link: str, *_: object) -> list[PredictionRow]:
        ran.append((name, link))
        return [replace(row(codec, 0.1, 0.11, link), model=name) for codec in ("none", "bf16")]

    monkeypatch.setattr(measuring, "bench_predictions", pretended)
    command = ["bench", "predictions", "--codecs", "none; bf16", "-o", "p.jsonl", "--model"]
    for names in ("gpt", "vgg,gpt", "vgg,gpt"):
        result = CliRunner().invoke(app, [*command, names, "--links", "none"])
        assert result.exit_code == 0, result.output
    assert ran == [("gpt", "none"), ("vgg", "none")]
    kinds = [json.loads(line)["kind"] for line in Path("p.jsonl").read_text().splitlines()]
    assert kinds == [*("circumstances", "prediction", "prediction", "prediction-summary")] * 2
    other = CliRunner().invoke(app, ["bench", "predictions", "--codecs", "none", "-o", "p.jsonl"])
    assert other.exit_code == 2
    assert "codecs are ['none', 'bf16'], not ['none']" in other.output
