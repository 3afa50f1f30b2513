"""What a worker makes of its steps, and how it tells."""

from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from tests.report.test_record import a_step
from thinwire.errors import WorldError
from thinwire.planner.auto_record import AutoDecision
from thinwire_lab.compare.contenders import Attached, parse_contender
from thinwire_lab.compare.worker import Job, Message, Probe, Trial, one_line, summary_of
from thinwire_lab.recipes import RECIPES
from thinwire_lab.report.record import Decision, Eval


def a_probe(text: str = "qsgd", target: float | None = 0.5) -> Probe:
    trial = Trial(f"{text} #0", text, 0)
    job = Job(recipe=RECIPES["fashion-tiny"], trials=[trial], target=target)
    probe = Probe(trial, parse_contender(text), job, rank=0, ranks=4)
    probe.parameters = 1000
    return probe


def an_eval(step: int, accuracy: float) -> Eval:
    return Eval(run="qsgd #0", step=step, seconds=10.0 * step, bytes_total=None, accuracy=accuracy, loss=1.0)


def test_a_summary_leaves_out_the_slow_beginning() -> None:
    probe = a_probe()
    slow = [replace(a_step("qsgd #0", n), step_seconds=100.0, exposed_seconds=90.0) for n in range(1, 6)]
    probe.steps = [*slow, *(replace(a_step("qsgd #0", n), step_seconds=0.5) for n in range(6, 21))]
    probe.evals = [an_eval(5, 0.4), an_eval(10, 0.6), an_eval(20, 0.55)]
    summary = summary_of(probe, bytes_per_step=600.0)
    assert (summary.step_seconds, summary.exposed_seconds) == (0.5, 0.3)
    assert summary.compute_seconds == pytest.approx(0.2)
    assert summary.samples_per_second == 4 * 32 / 0.5
    assert summary.wire_ratio == 10.0
    assert (summary.accuracy, summary.seconds_to_target) == (0.55, 100.0)


def test_without_communication_nothing_but_speed_is_told() -> None:
    probe = a_probe("headroom")
    probe.steps = [a_step("headroom #0")]
    summary = summary_of(probe, bytes_per_step=1.0)
    assert (summary.wire_ratio, summary.train_loss, summary.accuracy) == (None, None, None)
    assert summary.step_seconds == 1.0


def test_records_become_steps_and_evaluations(capsys: pytest.CaptureFixture[str]) -> None:
    probe = a_probe()
    probe.sent = [0, 100, 250]
    figures = {"step": 2, "loss": 1.5, "time": 3.0, "step_time": 1.0, "encode_seconds": 0.25, "bytes_sent": 7}
    probe.on_record({**figures, "test_accuracy": 0.5, "test_loss": 2.0})
    (step,), (found,) = probe.steps, probe.evals
    assert (step.bytes_sent, step.bytes_total, step.encode_seconds, step.exposed_seconds) == (150, 250, 0.25, None)
    assert (found.step, found.accuracy, found.bytes_total) == (2, 0.5, 250)
    told = [Message.find(f"[host0 rank0] {line}") for line in capsys.readouterr().out.splitlines()]
    assert [message.record for message in told if message is not None] == [step, found]


def test_decisions_of_auto_are_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    probe = a_probe("auto")
    made = AutoDecision(9, "bf16", "why", 0.2, 0.5, {"none": 0.2}, {"bf16": 0.1})
    probe.compressor = Attached(SimpleNamespace(decisions=[made]))  # type: ignore[arg-type]
    probe.sent = [0, 100, 250]
    figures = {"loss": 1.5, "time": 3.0, "step_time": 1.0}
    for step in (1, 2):
        probe.on_record({"step": step, **figures})
    told = [Message.find(f"[host0 rank0] {line}") for line in capsys.readouterr().out.splitlines()]
    records = [message.record for message in told if message is not None]
    assert [record.kind for record in records if record is not None] == ["step", "decision", "step"]
    assert records[1] == Decision(run="auto #0", **asdict(made))


def test_other_output_is_no_message() -> None:
    assert Message.find("[host0 rank0] hello") is None


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        (ValueError("wrong\nand more"), "ValueError: wrong"),
        (ValueError(), "ValueError: "),
        (WorldError("rank 0: it broke"), "rank 0: it broke"),
        (RuntimeError("Unable to cast rank 0: it broke to Tensor"), "rank 0: it broke"),
    ],
)
def test_an_error_takes_one_line(reason: Exception, line: str) -> None:
    assert one_line(reason) == line
