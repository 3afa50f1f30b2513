"""Nobody is praised whose model learnt less than uncompressed training: not in the verdict, a table, or on the page."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.report.test_record import a_run, an_end
from thinwire_lab.report.markdown import write_markdown
from thinwire_lab.report.page import write_page
from thinwire_lab.report.plots import export_plots
from thinwire_lab.report.record import Run, Writer, read_results
from thinwire_lab.report.standings import ranking, standings
from thinwire_lab.report.verdict import EQUAL_ACCURACY, shortfall


@pytest.mark.parametrize(
    ("accuracy", "plain", "guess", "mode", "reason"),
    [
        (0.75, 0.50, 0.1, "seconds", ""),
        (0.50, 0.50, 0.1, "seconds", ""),
        (0.499, 0.50, 0.1, "seconds", "0.1 points less accurate than ddp"),
        (0.50 - EQUAL_ACCURACY / 2, 0.50, 0.1, "steps", ""),
        (0.49, 0.50, 0.1, "steps", "1.0 points less accurate than ddp"),
        (0.187, 0.15, 0.1, "steps", "did not learn: 18.7 %, guessing gives 10.0 %"),
        (0.187, None, 0.1, "steps", "did not learn: 18.7 %, guessing gives 10.0 %"),
        (0.187, 0.15, None, "steps", ""),  # results of a version that did not know what guessing gives
        (0.19, 0.19, 0.1, "steps", ""),
        (None, 0.50, 0.1, "seconds", "has no accuracy"),
        (None, None, 0.1, "seconds", ""),
    ],
)
def test_the_reason_is_told(
    accuracy: float | None, plain: float | None, guess: float | None, mode: str, reason: str
) -> None:
    assert shortfall(accuracy, plain, "ddp", guess, mode) == reason


BY_TIME: dict[str, Any] = {"mode": "seconds", "seconds": 20.0, "guess_accuracy": 0.1, "target_accuracy": 0.7}
FIGURES: dict[str, dict[str, Any]] = {
    "ddp": {"steps": 25, "accuracy": 0.5},
    "qsgd": {"steps": 100, "accuracy": 0.75, "wire_ratio": 7.8, "seconds_to_target": 12.0},
    "fast": {"steps": 400, "accuracy": 0.187, "wire_ratio": 500.0},
    "hasty": {"steps": 200, "accuracy": 0.45, "wire_ratio": 90.0},
}


def results(path: Path, **common: Any) -> Path:
    """Two that learn, and two that are only fast."""
    with Writer(path) as writer:
        for label, figures in FIGURES.items():
            run: Run = a_run(label, baseline=label == "ddp", **{**BY_TIME, **common})
            writer.write(run)
            each = 20.0 / figures["steps"]
            equal = {"seconds": 20.0} if run.mode == "seconds" else {"steps": 100, "seconds": 100 * each}
            writer.write(an_end(label, **{"step_seconds": each, "bytes_per_step": 1e6, **figures, **equal}))
    return path


def test_standings_and_their_order(tmp_path: Path) -> None:
    rows = {row.label: row for row in standings(read_results(results(tmp_path / "r.jsonl")))}
    assert {label: bool(row.shortfall) for label, row in rows.items()} == {
        "ddp": False, "qsgd": False, "fast": True, "hasty": True,
    }  # fmt: skip
    assert rows["hasty"].shortfall == "5.0 points less accurate than ddp"
    assert (rows["fast"].speed_up, rows["qsgd"].speed_up) == (16.0, 4.0)
    assert [row.label for row in sorted(rows.values(), key=ranking)] == ["qsgd", "ddp", "hasty", "fast"]


def cards_of(page: str) -> list[str]:
    found = re.findall(r'<div class="card (\w*)">(.*?)</div>', page, re.DOTALL)
    return [f"{kind}: {' '.join(re.sub('<[^>]+>', ' ', text).split())}" for kind, text in found]


def test_cards_of_equal_time(tmp_path: Path) -> None:
    write_page(results(tmp_path / "r.jsonl"), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    first, target, speed, sent, grey = cards_of(page)
    assert first == ": Accuracy after 20 s of training 75.00 % with qsgd ; ddp reaches 50.00 % in the same time."
    assert target == ": Time to 70 % accuracy 12.0 s of training with qsgd ; ddp does not reach it."
    assert speed.startswith(": Fastest 4.00× as fast as ddp over the whole training with qsgd (75.00 %)")
    assert sent.startswith(": Fewest bytes 7.80× fewer than fp32 with qsgd")
    assert grey.startswith("grey: Fast, but it does not count 2 fast (16.0×): did not learn: 18.7 %")
    assert "hasty (8.00×): 5.0 points less accurate than ddp" in grey
    rows = re.findall(r'<tr( class="grey")?><th scope="row">(?:<i[^>]*></i>)(\w+)', page)
    assert rows == [("", "qsgd"), ("", "ddp"), (' class="grey"', "hasty"), (' class="grey"', "fast")]
    assert "<small>did not learn: 18.7 %, guessing gives 10.0 %</small>" in page


def test_hooks_of_pytorch_are_praised_like_codecs(tmp_path: Path) -> None:
    path = results(tmp_path / "r.jsonl")
    with Writer(path) as writer:
        writer.write(a_run("torch-powersgd", baseline=True, **BY_TIME))
        figures: dict[str, Any] = {
            "steps": 150,
            "seconds": 20.0,
            "step_seconds": 0.1,
            "accuracy": 0.72,
            "wire_ratio": 25.0,
        }
        writer.write(an_end("torch-powersgd", **figures, bytes_per_step=1e5))
    write_page(path, tmp_path / "report.html")
    cards = cards_of((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert any(card.startswith(": Fastest 6.00×") and "torch-powersgd (72.00 %)" in card for card in cards)
    assert any(card.startswith(": Fewest bytes 25.0×") and "torch-powersgd (72.00 %)" in card for card in cards)


def test_a_comparison_of_equal_steps_praises_nobody_either(tmp_path: Path) -> None:
    steps = {"mode": "steps", "seconds": None, "target_accuracy": None}
    write_page(results(tmp_path / "r.jsonl", **steps), tmp_path / "report.html")
    cards = cards_of((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert [card.partition(":")[0] for card in cards if "fast (" in card or "hasty" in card] == ["grey"]
    assert cards[0].startswith(": Fastest 4.00× as fast as ddp over the whole training with qsgd")


def test_when_nothing_beats_uncompressed_training_the_page_says_so(tmp_path: Path) -> None:
    with Writer(tmp_path / "r.jsonl") as writer:
        for label in ("ddp", "fast"):
            writer.write(a_run(label, baseline=label == "ddp", **BY_TIME))
            writer.write(an_end(label, seconds=20.0, step_seconds=0.1, **FIGURES[label]))
    write_page(tmp_path / "r.jsonl", tmp_path / "report.html")
    cards = cards_of((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert cards[0].endswith("50.00 % with ddp : nobody is more accurate in the same time.")
    assert cards[1] == "bad: Time to 70 % accuracy not reached No contender reaches it with all its seeds."
    assert cards[2].startswith("bad: Fastest none No contender is faster than ddp")
    assert not any("Fewest bytes" in card for card in cards)


def test_markdown_and_plots_know_both_modes(tmp_path: Path) -> None:
    path = results(tmp_path / "r.jsonl")
    write_markdown(path, tmp_path / "r.md")
    text = (tmp_path / "r.md").read_text(encoding="utf-8")
    assert "after 20 s of training" in text
    assert text.index("| `qsgd` |") < text.index("| `ddp` |") < text.index("| `fast` |")
    assert "- `fast` does not count: did not learn: 18.7 %, guessing gives 10.0 %." in text
    speed = next(plot for plot in export_plots(path, tmp_path / "svg") if plot.name == "speed.svg")
    assert speed.stat().st_size > 0
