"""What the terminal shows."""

from dataclasses import replace

import pytest
from rich.console import Console

from tests.compare.test_session import COMPARISON
from tests.report.test_record import a_run, a_step, an_end
from thinwire_lab.compare.table import Board, bytes_text, failed_lines, final_table, milliseconds, place_line, run_line
from thinwire_lab.lab import LabSpec
from thinwire_lab.report.record import Eval
from thinwire_lab.report.standings import standings


def shown(thing: object) -> str:
    console = Console(width=200, record=True, file=None, quiet=True)
    with console.capture() as capture:
        console.quiet = False
        console.print(thing)
    return capture.get()


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, ""), (12, "12 B"), (1234, "1.23 kB"), (999_600, "1 MB"), (123e6, "123 MB"), (5e12, "5000 GB")],
)
def test_bytes_have_three_digits(count: float | None, text: str) -> None:
    assert bytes_text(count) == text


def test_times_have_a_unit() -> None:
    assert [milliseconds(s) for s in (None, 0.0123, 2.5)] == ["", "12 ms", "2.50 s"]


def test_the_board_follows_the_records() -> None:
    board = Board(COMPARISON)
    assert shown(board).count("waits") == 3
    board.hear(a_run("none"))
    assert "starts" in shown(board)
    board.hear(a_step("none #0", 2, loss=0.25))
    board.hear(Eval(run="none #0", step=2, seconds=2.0, bytes_total=20, accuracy=0.815, loss=1.0))
    text = shown(board)
    assert "2/3" in text
    assert "0.250" in text
    assert "81.5 %" in text
    assert "trains" in text
    board.hear(an_end("none"))
    board.hear(a_run("qsgd"))
    board.hear(an_end("qsgd", error="it broke"))
    assert "done" in shown(board)
    assert "it broke" in shown(board)
    twice = Board(replace(COMPARISON, seeds=2), board.finished())
    assert shown(twice).count("left out") == 1  # the second seed of what broke
    assert [log.run.label for log in board.finished()] == ["none", "qsgd"]


def test_the_final_table_compares_with_none() -> None:
    board = Board(replace(COMPARISON, seeds=2))
    plain = an_end("none", steps=3, seconds=3.0, step_seconds=1.0, exposed_seconds=0.8, compute_seconds=0.2)
    for record in (a_run("none"), plain):
        board.hear(record)
    for seed in (0, 1):
        board.hear(a_run("qsgd", seed))
        board.hear(an_end("qsgd", seed, accuracy=0.5 + 0.1 * seed, seconds_to_target=3.0, seconds=0.75, steps=3))
    board.hear(a_run("fp16"))
    board.hear(an_end("fp16", error="it broke"))
    rows = standings(board.finished())
    text = shown(final_table(rows, "title", target=0.5, width=200))
    assert "4.00x" in text
    assert "80 %" in text
    assert "55.0 ± 7.1 %" in text
    assert "to 50 %" in text
    assert "missed" in text
    narrow = shown(final_table(rows, "title", width=80))
    assert "speed-up" in narrow
    assert "samples/s" not in narrow
    assert failed_lines(rows) == ["fp16 failed: it broke"]


def test_a_run_in_one_line() -> None:
    assert run_line(an_end("qsgd", steps=3, step_seconds=0.5, bytes_per_step=2e6, accuracy=0.5)) == (
        "qsgd #0: 3 steps, 500 ms a step, 2 MB sent, accuracy 50.0 %"
    )
    assert run_line(an_end("qsgd", error="it broke")) == "qsgd #0: failed: it broke"


def test_the_place_is_told() -> None:
    thin = replace(COMPARISON, lab=LabSpec(hosts=4, links="100mbit", latency="5ms"), procs_per_host=2)
    assert (
        place_line(thin)
        == "fashion-tiny (vgg-tiny) on 4 hosts with 2 ranks each, links of 100mbit and 5ms latency, 3 steps each"
    )
    assert place_line(COMPARISON) == "fashion-tiny (vgg-tiny) on 2 hosts, plain loopback, 3 steps each"
    timed = replace(COMPARISON, seconds=20.0)
    assert place_line(timed) == "fashion-tiny (vgg-tiny) on 2 hosts, plain loopback, 20 s each"


def test_the_rest_is_estimated_from_what_is_done() -> None:
    now = [100.0]
    board = Board(replace(COMPARISON, seconds=20.0), clock=lambda: now[0])
    assert board.progress_line() == "0 of 3 runs done"
    now[0] = 130.0  # until the hosts are up
    board.hear(a_run("none"))
    assert board.progress_line() == "0 of 3 runs done"
    now[0] = 145.0
    board.hear(replace(a_step("none #0"), seconds=10.0))
    assert board.progress_line() == "0 of 3 runs done, about 1 min 15 s left"  # half a run of three in 15 s
    now[0] = 160.0
    board.hear(an_end("none"))
    assert board.progress_line() == "1 of 3 runs done, about 1 min 0 s left"
    resumed = Board(replace(COMPARISON, seconds=20.0), board.finished(), clock=lambda: now[0])
    resumed.hear(a_run("qsgd"))
    now[0] = 200.0
    resumed.hear(an_end("qsgd"))
    assert resumed.progress_line() == "2 of 3 runs done, about 40 s left"
    resumed.hear(a_run("fp16"))
    resumed.hear(an_end("fp16", error="it broke"))
    assert resumed.progress_line() == "3 of 3 runs done"
    again = Board(replace(COMPARISON, seconds=20.0), resumed.finished(), clock=lambda: now[0])
    again.hear(a_run("fp16"))
    now[0] = 215.0
    again.hear(replace(a_step("fp16 #0"), seconds=10.0))
    assert again.progress_line() == "2 of 3 runs done, about 15 s left"
