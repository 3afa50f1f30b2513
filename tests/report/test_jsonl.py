"""Damaged files: one sentence with the file and the line, never a traceback."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from benchmarks.claims.page import convergence_text
from benchmarks.convergence import read_runs
from tests.report.test_record import EXAMPLES, a_run, a_step
from thinwire.cli import app
from thinwire_lab.compare.worker import MARK, Message
from thinwire_lab.recipes import read_records
from thinwire_lab.report.jsonl import RecordError, parse
from thinwire_lab.report.jsonl import to_line as json_line
from thinwire_lab.report.record import read_results, to_line

GOOD = [to_line(record).encode() for record in (a_run(), *EXAMPLES)]
STEP = json.loads(to_line(a_step("qsgd #0")))
LAYERS = next(json.loads(line) for line in GOOD if json.loads(line)["kind"] == "layers")


def changed(record: dict[str, Any], **fields: Any) -> bytes:
    return json.dumps({**record, **fields}).encode()


DAMAGE: dict[str, tuple[bytes, str]] = {
    "nested": (b"[" * 100_000 + b"]" * 100_000, "nested deeper than 32"),
    "nested inside": (changed(STEP, more=json.loads("[" * 200 + "]" * 200)), "nested deeper than 32"),
    "not text": (b'{"kind": "\xff\xfe"}', "not UTF-8 text"),
    "not JSON": (b"{", "not JSON"),
    "empty": (b"", "not JSON"),
    "NaN": (changed(STEP, loss=math.nan), "it has NaN, which is not JSON"),
    "infinite": (changed(STEP, loss=-math.inf), "it has -Infinity"),
    "too large": (changed(STEP).replace(b'"step": 1', b'"step": 1, "x": 1e999'), "a number that is too large"),
    "many digits": (b'{"kind": ' + b"9" * 5000 + b"}", "too many digits"),
    "huge integer": (changed(STEP, seconds=10**400), "an integer of more than 64 bits"),
    "half a letter": (b'{"kind": "\\ud800"}', "surrogate"),
    "a kind that is a list": (changed(STEP, kind=["step"]), "a record's kind is one of run"),
    "a list": (b"[1]", "a record's kind is one of run"),
    "text for a number": (changed(STEP, seconds="1"), "the field 'seconds' must be float, not str"),
    "a list of other things": (changed(LAYERS, layers=[1]), "a layer must be dict, not int"),
    "shape": (changed(LAYERS, layers=[{**LAYERS["layers"][0], "shape": ["a"]}]), r"'shape\[0\]' must be int, not str"),
    "versions": (changed(json.loads(GOOD[0]), versions={"torch": 2}), r"'versions.torch' must be str, not int"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_told_with_file_and_line(name: str, tmp_path: Path) -> None:
    line, complaint = DAMAGE[name]
    path = tmp_path / "r.jsonl"
    path.write_bytes(GOOD[0] + b"\n" + line + b"\n" + GOOD[1] + b"\n")
    with pytest.raises(RecordError, match=rf"r\.jsonl, line 2: .*{complaint}.*`thinwire compare` wrote\.$"):
        read_results(path)


@pytest.mark.parametrize("name", ["nested", "not text", "NaN", "a kind that is a list"])
def test_the_command_line_tells_it_in_one_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(GOOD[0] + b"\n" + DAMAGE[name][0] + b"\n")
    resume = ("compare", "--hosts", "2", "--link", "none", "--codecs", "none", "-o", str(path), "--resume")
    for arguments in (("report", str(path), "-o", str(tmp_path / "page.html")), resume):
        done = CliRunner().invoke(app, list(arguments))
        assert done.exit_code == 2, done.output
        assert f"{path}, line 2: " in done.output
        assert done.output.startswith("thinwire: ")
        assert done.output.count("\n") == 1


def test_only_an_unfinished_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    for cut in (b'{"kind": "st', b'{"label": "\xc3'):
        path.write_bytes(GOOD[0] + b"\n" + cut)
        assert len(read_results(path)) == 1
        path.write_bytes(GOOD[0] + b"\n" + cut + b"\n")
        with pytest.raises(RecordError, match="line 2"):
            read_results(path)
    path.write_bytes(GOOD[0] + b"\n" + GOOD[1])
    assert len(read_results(path)) == 1


READERS: dict[str, Callable[[Path], Any]] = {
    "compare": read_results,
    "train": read_records,
    "convergence": read_runs,
    "claims": convergence_text,
}
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
RECORDS = st.sampled_from([json.loads(line) for line in GOOD]).flatmap(
    lambda record: st.builds(
        lambda name, value: {**record, name: value}, st.sampled_from([*record, "runs", "summary"]), ANY_JSON
    )
)
ANY_LINE = st.sampled_from(GOOD) | st.binary(max_size=20) | ANY_JSON.map(json.dumps).map(str.encode)
LINES = st.lists(ANY_LINE | RECORDS.map(changed), max_size=4)


def complaint_of(action: Callable[[], object]) -> str:
    """What a reader refuses with; nothing if it does not refuse."""
    try:
        action()
    except RecordError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("reader", READERS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=LINES, cut=st.integers(0, 30))
def test_readers_read_or_refuse(reader: str, tmp_path: Path, lines: list[bytes], cut: int) -> None:
    """Whatever a file holds: a value, or a sentence that names the file."""
    path = tmp_path / "any.jsonl"
    data = b"\n".join(lines)
    path.write_bytes(data[: len(data) - cut] if cut < len(data) else data)
    complaint = complaint_of(lambda: READERS[reader](path))
    assert not complaint or str(path) in complaint
    assert "\n" not in complaint


@settings(max_examples=150, deadline=None)
@given(ANY_JSON)
def test_what_is_written_can_be_read(value: Any) -> None:
    line = json_line(value).encode()
    complaint = complaint_of(lambda: parse(line))
    if complaint:
        assert "surrogate" in complaint or "64 bits" in complaint
    else:
        assert json_line(parse(line)).encode() == line


@pytest.mark.parametrize(
    "text", ["{", "[1]", "3", '{"event": "begin"}', '{"event": 1, "run": 2, "record": 3, "error": 4}']
)
def test_a_damaged_message_of_a_worker_is_a_sentence(text: str) -> None:
    with pytest.raises(RecordError, match="a message of a worker is damaged"):
        Message.find(f"[host0 rank0] {MARK}{text}")


def test_metrics_of_a_run_that_diverged_can_be_resumed(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(json_line({"step": 1, "loss": math.nan}) + "\n")
    assert read_records(path) == [{"step": 1, "loss": None}]
    path.write_text('{"step": 1}\n{"st\n{"step": 2}\n')
    with pytest.raises(RecordError, match=r"m\.jsonl, line 2: .*`thinwire train --metrics` wrote"):
        read_records(path)
    path.write_text('{"step": 1}\n{"loss": 2}\n')
    with pytest.raises(RecordError, match=r"m\.jsonl, line 2: a record is an object with a whole number 'step'"):
        read_records(path)
