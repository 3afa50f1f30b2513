"""Real processes on loopback: two hosts, a few steps, and a table at the end."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from thinwire_lab.report.record import read_results

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(240)]

COMMAND = (
    *(sys.executable, "-m", "thinwire", "compare", "--hosts", "2", "--link", "none", "--recipe", "fashion-tiny"),
    *("--batch", "8", "--test-limit", "64", "--target", "0.01"),
)
STEPS = ("--steps", "6", "--evaluate-every", "3")


def compare(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "160"}
    return subprocess.run(
        [*COMMAND, "-o", "r.jsonl", *options], cwd=folder, env=environment, capture_output=True, text=True, timeout=110
    )


def test_a_comparison_and_its_resumption(tmp_path: Path) -> None:
    done = compare(tmp_path, *STEPS, "--codecs", "none,qsgd", "--baseline", "headroom")
    assert done.returncode == 0, done.stderr
    assert "speed-up" in done.stdout
    assert "After 6 steps over plain loopback" in done.stdout.splitlines()[-1]
    none, qsgd, headroom = read_results(tmp_path / "r.jsonl")
    assert none.summary is not None
    assert qsgd.summary is not None
    assert headroom.summary is not None
    assert [step.step for step in none.steps] == [1, 2, 3, 4, 5, 6]
    assert [found.step for found in qsgd.evals] == [3, 6]
    assert headroom.evals == []
    assert qsgd.summary.seconds_to_target == qsgd.evals[0].seconds
    assert none.summary.wire_ratio == pytest.approx(1.0, rel=0.1)
    assert qsgd.summary.wire_ratio is not None
    assert qsgd.summary.wire_ratio > 6
    assert sum(layer.numel for layer in qsgd.layers) == qsgd.run.parameters == 87938
    assert {layer.codec for layer in qsgd.layers} == {"none", "qsgd(bits=4)"}
    errors = {layer.relative_error for layer in qsgd.layers if layer.codec != "none"}
    assert all(error is not None and 0 < error < 1 for error in errors)

    again = compare(tmp_path, *STEPS, "--codecs", "none,qsgd", "--baseline", "headroom", "--resume", "--json")
    assert again.returncode == 0, again.stderr
    assert len(read_results(tmp_path / "r.jsonl")) == 3
    assert [row["label"] for row in json.loads(again.stdout)] == ["none", "qsgd", "headroom"]
    assert "a step" not in again.stderr  # no run was needed


@pytest.mark.slow
def test_auto_takes_part_and_its_decision_is_reported(tmp_path: Path) -> None:
    done = compare(tmp_path, "--steps", "40", "--evaluate-every", "0", "--codecs", "auto(candidates='bf16'), none")
    assert done.returncode == 0, done.stderr
    auto, none = read_results(tmp_path / "r.jsonl")
    assert none.decisions == []
    (decision, *_) = auto.decisions
    assert decision.plan in ("none", "bf16")
    assert decision.reason
    assert 8 <= decision.step <= 40
    assert 0 < decision.plain_seconds < 60
    assert {layer.codec for layer in auto.layers} <= {"none", "bf16"}
    assert auto.summary is not None
    assert auto.summary.error is None
    report = [sys.executable, "-m", "thinwire", "report", "r.jsonl", "--markdown", "r.md"]
    subprocess.run(report, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    text = (tmp_path / "r.md").read_text(encoding="utf-8")
    assert decision.reason.replace("|", r"\|") in text.partition("## What auto decided")[2]


def test_outer_steps_take_part(tmp_path: Path) -> None:
    outer = "diloco(every=4); sparseloco(every=4, overlap=2)"
    done = compare(tmp_path, "--steps", "13", "--evaluate-every", "0", "--codecs", outer)
    assert done.returncode == 0, done.stderr
    diloco, sparse = read_results(tmp_path / "r.jsonl")
    assert diloco.summary is not None
    assert sparse.summary is not None
    assert [step.step for step in diloco.steps] == [10, 13]
    # 13 steps hold three rounds, and one comes before the end
    assert diloco.summary.wire_ratio == pytest.approx(13 / 4, rel=0.15)
    assert sparse.summary.wire_ratio is not None
    assert sparse.summary.wire_ratio > 30
    assert diloco.summary.test_loss is not None
    assert diloco.summary.exposed_seconds is not None
    layers = {layer.name: layer.wire_ratio for layer in diloco.layers}
    assert set(layers.values()) == {4.0}


def test_a_comparison_of_equal_time_and_its_resumption(tmp_path: Path) -> None:
    done = compare(tmp_path, "--seconds", "1.5", "--codecs", "none,qsgd")
    assert done.returncode == 0, done.stderr
    assert re.search(r"none #0: .*\(1 of 2 runs done, about .* left\)", done.stderr)
    assert "After 1.5 s over plain loopback: " in done.stdout
    for log in read_results(tmp_path / "r.jsonl"):
        assert (log.run.mode, log.run.seconds, log.run.target_accuracy) == ("seconds", 1.5, 0.01)
        assert log.summary is not None
        assert log.summary.steps == log.steps[-1].step >= 1
        assert log.summary.seconds == log.steps[-1].seconds
        assert log.steps[-1].seconds >= 1.5
        assert log.evals[-1].step == log.summary.steps
        assert log.summary.seconds_to_target == log.evals[0].seconds
        assert [e.step for e in log.evals] == sorted({e.step for e in log.evals})
    again = compare(tmp_path, "--seconds", "1.5", "--codecs", "none,qsgd,fp16", "--resume", "--json")
    assert again.returncode == 0, again.stderr
    assert "none #0" not in again.stderr
    assert [row["mode"] for row in json.loads(again.stdout)] == ["seconds"] * 3
    other = compare(tmp_path, *STEPS, "--codecs", "none", "--resume")
    assert other.returncode == 2
    assert "mode is 'seconds' there, 'steps' here" in other.stderr
