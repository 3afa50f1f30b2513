"""Records of a comparison: what is written is read back, and what is not a record is refused with its line."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinwire_lab.report.record import (
    KINDS,
    Decision,
    Eval,
    Layer,
    Layers,
    Record,
    RecordError,
    Run,
    Step,
    Summary,
    Writer,
    from_dict,
    read_results,
    to_line,
)
from thinwire_lab.report.standings import standings


def a_run(label: str = "qsgd", seed: int = 0, **changes: Any) -> Run:
    given: dict[str, Any] = {
        "run": f"{label} #{seed}",
        "label": label,
        "codec": label,
        "baseline": False,
        "seed": seed,
        "hosts": 4,
        "procs_per_host": 1,
        "ranks": 4,
        "link": "200mbit",
        "latency": "0ms",
        "recipe": {"name": "fashion-tiny", "model": "vgg-tiny", "steps": 3},
        "parameters": 1000,
        "target_accuracy": None,
        "command": "thinwire compare",
        "versions": {"torch": "2"},
        "machine": {"cores": 2},
        "started": "2026-01-01T00:00:00+00:00",
    }
    return Run(**{**given, **changes})


def a_step(run: str, step: int = 1, loss: float | None = 1.0) -> Step:
    return Step(
        run=run,
        step=step,
        loss=loss,
        seconds=float(step),
        step_seconds=1.0,
        bytes_sent=10,
        bytes_total=10 * step,
        encode_seconds=0.1,
        communicate_seconds=0.2,
        decode_seconds=None,
        exposed_seconds=0.3,
        relative_error=None,
    )


def a_decision(run: str, plan: str = "qsgd(bits=4)", reason: str = "it is 2.00 times as fast") -> Decision:
    return Decision(
        run=run,
        step=24,
        plan=plan,
        reason=reason,
        plain_seconds=0.2,
        network_share=0.75,
        predicted={"none": 0.21, plan: 0.09},
        measured={plan: 0.1},
    )


def an_end(label: str, seed: int = 0, **figures: Any) -> Summary:
    return Summary(run=f"{label} #{seed}", label=label, seed=seed, **figures)


LAYER = Layer(
    name="a", shape=[2, 3], numel=6, codec="none", why="small", wire_bytes=9, wire_ratio=4.0, relative_error=None
)
EXAMPLES: tuple[Record, ...] = (
    a_run(),
    a_step("qsgd #0"),
    Eval(run="qsgd #0", step=3, seconds=3.0, bytes_total=None, accuracy=0.5, loss=1.5),
    a_decision("qsgd #0"),
    Layers(run="qsgd #0", layers=[LAYER]),
    an_end("qsgd", steps=3, step_seconds=0.25),
)


@pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: record.kind)
def test_a_record_is_read_back_as_it_was(record: Record) -> None:
    assert from_dict(json.loads(to_line(record))) == record


def test_every_kind_has_an_example() -> None:
    assert {record.kind for record in EXAMPLES} == set(KINDS)


@given(st.floats())
def test_a_loss_is_a_finite_number_or_null(loss: float) -> None:
    written = json.loads(to_line(a_step("qsgd #0", loss=loss)))["loss"]
    assert written == (loss if math.isfinite(loss) else None)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"kind": "party"}, "kind is one of run, step"),
        ({"step": "one"}, "'step' must be int, not str"),
        ({"step": True}, "'step' must be int, not bool"),
        ({"seconds": None}, "'seconds' must be float, not NoneType"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RecordError, match=complaint):
        from_dict({**json.loads(to_line(a_step("r"))), **change})


def test_a_missing_field_is_named() -> None:
    given = json.loads(to_line(a_step("r")))
    del given["loss"]
    with pytest.raises(RecordError, match="step needs the field 'loss'"):
        from_dict(given)


def test_fields_of_later_versions_are_left_out() -> None:
    given = json.loads(to_line(a_step("r")))
    assert from_dict({**given, "colour": "red"}) == a_step("r")


def written(path: Path, *records: Record) -> Path:
    with Writer(path) as writer:
        for record in records:
            writer.write(record)
    return path


def test_runs_are_gathered_in_their_order(tmp_path: Path) -> None:
    path = written(tmp_path / "results.jsonl", a_run("none"), *EXAMPLES, a_step("none #0"))
    first, second = read_results(path)
    assert (first.run.label, len(first.steps), first.summary) == ("none", 1, None)
    assert (second.run.label, len(second.evals), second.layers) == ("qsgd", 1, [LAYER])
    assert second.summary == EXAMPLES[-1]


def test_a_run_that_began_twice_counts_from_its_last_beginning(tmp_path: Path) -> None:
    path = written(tmp_path / "r.jsonl", a_run(), a_step("qsgd #0"), a_step("qsgd #0", 2), a_run(), a_step("qsgd #0"))
    (log,) = read_results(path)
    assert len(log.steps) == 1


def test_a_line_cut_short_is_left_out_and_overwritten(tmp_path: Path) -> None:
    path = written(tmp_path / "r.jsonl", a_run(), a_step("qsgd #0"))
    path.write_bytes(path.read_bytes()[:-5])
    assert read_results(path)[0].steps == []
    written(path, a_step("qsgd #0", 2))
    assert [s.step for s in read_results(path)[0].steps] == [2]


@pytest.mark.parametrize("text", ["no JSON\n{}\n", '{"kind": 1}\n', to_line(a_step("stranger")) + "\n"])
def test_a_foreign_file_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(RecordError, match="line 1"):
        read_results(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"nowhere.jsonl: No such file"):
        read_results(tmp_path / "nowhere.jsonl")


def test_standings_have_speed_ups_and_spreads(tmp_path: Path) -> None:
    path = written(
        tmp_path / "r.jsonl",
        a_run("none"),
        an_end("none", step_seconds=2.0, seconds=20.0, steps=10, accuracy=0.5, seconds_to_target=9.0),
        a_run("qsgd", 0),
        an_end("qsgd", 0, step_seconds=0.5, seconds=8.0, steps=10, accuracy=0.4, seconds_to_target=4.0),
        a_run("qsgd", 1),
        an_end("qsgd", 1, step_seconds=0.5, seconds=8.0, steps=10, accuracy=0.6),
        a_run("bad"),
        an_end("bad", error="it broke"),
    )
    none, qsgd, bad = standings(read_results(path))
    assert (none.speed_up, none.steady_speed_up, none.seconds_to_target) == (1.0, 1.0, 9.0)
    assert (qsgd.speed_up, qsgd.steady_speed_up) == (2.5, 4.0)  # the first counts the slow beginning
    assert (qsgd.step_seconds, qsgd.mean_seconds, qsgd.momentum) == (0.5, 0.8, "optimiser")
    assert (qsgd.runs, qsgd.seconds_to_target, qsgd.reached_target) == (2, None, 1)
    assert qsgd.accuracy is not None
    assert qsgd.accuracy.mean == pytest.approx(0.5)
    assert qsgd.accuracy.deviation == pytest.approx(0.02**0.5)
    assert (bad.error, bad.runs, bad.step_seconds) == ("it broke", 0, None)
