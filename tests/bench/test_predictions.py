"""Predictions beside measurements: errors, targets, and whether the fastest codec was found."""

from thinwire_lab.bench.predictions import PredictionRow, predictions_table, summed_up
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
