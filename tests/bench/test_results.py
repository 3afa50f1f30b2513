"""Figures beside their targets, the records of a file, and the sizes a user types."""

import json
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinwire_lab.bench import results
from thinwire_lab.bench.results import BenchError, Target, at_least, at_most, beside_target, missed, record_of


@dataclass(frozen=True)
class Measured:
    kind: ClassVar[str] = "measured"

    name: str
    speed: float | None
    aim: Target | None

    @property
    def title(self) -> str:
        return self.name

    def judged(self) -> list[tuple[str, float | None, Target | None]]:
        return [("speed", self.speed, self.aim)]


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_a_target_is_met_on_its_own_side(figure: float, aim: float) -> None:
    assert at_least(aim).met(figure) == (figure >= aim)
    assert at_most(aim).met(figure) == (figure <= aim)


@pytest.mark.parametrize(
    ("target", "figure", "shown"),
    [
        (None, 0.5, "0.50"),
        (None, -0.001, "0.00"),
        (at_least(0.5), 0.72, "0.72 ≥ 0.5"),
        (at_least(0.5), 0.4, "[bold red]0.40 < 0.5[/]"),
        (at_most(2.5), 2.5, "2.50 ≤ 2.5"),
        (at_most(2.5), 2.6, "[bold red]2.60 > 2.5[/]"),
    ],
)
def test_a_missed_target_is_marked(target: Target | None, figure: float, shown: str) -> None:
    assert beside_target(figure, target) == shown


def test_records_say_what_was_met() -> None:
    record = json.loads(json.dumps(record_of(Measured("a", 3.0, at_least(2.0)))))
    assert record == {"kind": "measured", "name": "a", "speed": 3.0, "aim": 2.0, "met": {"speed": True}}
    assert record_of(Measured("a", 3.0, None))["met"] == {}
    assert record_of(Measured("a", None, at_least(2.0)))["met"] == {}


def test_missed_targets_are_counted() -> None:
    rows = [Measured("a", 3.0, at_least(2.0)), Measured("b", 1.0, at_least(2.0)), Measured("c", 1.0, None)]
    assert missed(rows) == (["b, speed"], 2)


def test_a_file_is_dated_and_never_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    day = f"{datetime.now(timezone.utc):%Y-%m-%d}"
    assert results.results_path("ddp") == Path(f"{day}-ddp.jsonl")
    results.FOLDER.mkdir(parents=True)
    first = results.results_path("ddp")
    assert first == results.FOLDER / f"{day}-ddp.jsonl"
    first.touch()
    assert results.results_path("ddp") == results.FOLDER / f"{day}-ddp-2.jsonl"


def test_the_first_record_tells_the_circumstances(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["/somewhere/thinwire/__main__.py", "bench", "-o", "/somewhere/else/x.jsonl", "iwp(density=1/64)"]
    monkeypatch.setattr("sys.argv", words)
    record = json.loads(results.heading_line("ddp"))
    assert record["kind"] == "circumstances"
    assert record["benchmark"] == "ddp"
    assert record["command"] == "thinwire bench -o x.jsonl iwp(density=1/64)"
    assert {"date", "cpu", "cores", "python", "torch", "thinwire"} <= set(record)


def test_sizes_and_counts() -> None:
    assert results.parse_sizes("4k, 256K,64m,12") == [2**12, 2**18, 2**26, 12]
    assert results.parse_counts("1,2", "threads") == [1, 2]
    assert [results.show_size(size) for size in (3, 2**12, 3 * 2**19, 2**28)] == ["3 B", "4 KiB", "1.5 MiB", "256 MiB"]


@pytest.mark.parametrize("text", ["k", "3", "-4k", "4x", "1.5m"])
def test_a_wrong_size_is_refused(text: str) -> None:
    with pytest.raises(BenchError, match="write 4k,256k,64m"):
        results.parse_sizes(text)


@pytest.mark.parametrize("text", ["", "0", "two", "1,-2"])
def test_a_wrong_count_is_refused(text: str) -> None:
    with pytest.raises(BenchError, match="threads are whole numbers"):
        results.parse_counts(text, "threads")
