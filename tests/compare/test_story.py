"""The lines that are printed last: what a comparison came to."""

from dataclasses import replace
from pathlib import Path

from tests.compare.test_session import COMPARISON
from tests.report.test_verdict import results
from thinwire_lab.compare.story import story
from thinwire_lab.lab import LabSpec
from thinwire_lab.report.record import read_results
from thinwire_lab.report.standings import standings

BY_TIME = replace(COMPARISON, lab=LabSpec(hosts=4, links="100mbit"), seconds=20.0, target=0.7)


def test_accuracy_at_equal_time(tmp_path: Path) -> None:
    rows = standings(read_results(results(tmp_path / "r.jsonl")))
    assert story(rows, BY_TIME) == [
        "After 20 s over links of 100mbit: fast 19 %, hasty 45 %, ddp 50 %, qsgd 75 %.",
        "70 % accuracy: qsgd after 12.0 s, ddp not reached.",
        "qsgd is 25.0 points more accurate than ddp after the same time, with 4.00× as many steps and 7.80× fewer"
        " bytes a step than fp32.",
    ]


def test_nobody_is_praised_without_accuracy(tmp_path: Path) -> None:
    rows = [row for row in standings(read_results(results(tmp_path / "r.jsonl"))) if row.label != "qsgd"]
    _, target, best = story(rows, BY_TIME)
    assert target == "70 % accuracy: not reached by any contender."
    assert best == "No contender is more accurate than ddp after this time."


def test_speed_at_equal_steps(tmp_path: Path) -> None:
    by_steps = replace(BY_TIME, seconds=None, target=None)
    rows = standings(read_results(results(tmp_path / "r.jsonl", mode="steps", seconds=None)))
    assert story(rows, by_steps) == [
        "After 3 steps over links of 100mbit: qsgd is 4.00× as fast as ddp at equal accuracy (75.0 % and 50.0 %)."
    ]
    alone = [row for row in rows if row.label != "qsgd"]
    assert story(alone, by_steps) == [
        "After 3 steps over links of 100mbit: no contender is faster than ddp at equal accuracy."
    ]
    assert story([row for row in rows if row.label != "ddp"], by_steps) == []


def test_without_any_result_nothing_is_told() -> None:
    assert story([], BY_TIME) == []
