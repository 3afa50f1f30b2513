"""A comparison's bookkeeping, with hosts that only pretend: what they say is kept, and what fails does not stop it."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.report.test_record import a_step, an_end
from thinwire_lab.compare import session as session_module
from thinwire_lab.compare.contenders import parse_contenders
from thinwire_lab.compare.session import Comparison, Session, prepared
from thinwire_lab.compare.worker import Job, Message
from thinwire_lab.lab import LabError, LabSpec
from thinwire_lab.recipes import RECIPES, RecipeError
from thinwire_lab.report.record import Record, RecordError, Step, read_results

COMPARISON = Comparison(
    contenders=parse_contenders(["none,qsgd,fp16"]),
    recipe=replace(RECIPES["fashion-tiny"], steps=3),
    recipe_name="fashion-tiny",
    lab=LabSpec(hosts=2),
)


class PretendedHosts:
    """Answers each launch with lines as workers would say them; `failing` trials break as told."""

    def __init__(self, failing: dict[str, str]) -> None:
        self.failing, self.launches = failing, list[list[str]]()
        self.jobs: list[Job] = []

    def launch(self, argv: Sequence[str], procs: int, *, echo: Callable[[str], None]) -> int:
        assert argv[:2] == ["-m", "thinwire_lab.compare.worker"]
        job = Job.from_json(argv[2])
        self.jobs.append(job)
        self.launches.append([trial.run for trial in job.trials])
        echo("[host0] torchrun says something")
        for trial in job.trials:
            self._say(echo, Message("begin", trial.run))
            self._say(echo, Message("record", trial.run, a_step(trial.run)))
            if trial.run in self.failing:
                if self.failing[trial.run]:
                    self._say(echo, Message("failed", trial.run, error=self.failing[trial.run]))
                    self._say(echo, Message("failed", trial.run, error="connection closed by peer"))
                return 1
            self._say(echo, Message("record", trial.run, an_end(trial.contender, trial.seed, step_seconds=1.0)))
        return 0

    def _say(self, echo: Callable[[str], None], message: Message) -> None:
        told: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("builtins.print", lambda line, flush: told.append(line))
            message.say()
        echo(f"[host0 rank0] {told[0]}")


def launch(hosts: PretendedHosts, argv: Sequence[str], procs: int, *, echo: Callable[[str], None]) -> int:
    return hosts.launch(argv, procs, echo=echo)


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[..., PretendedHosts]:
    def use(failing: dict[str, str] | None = None) -> PretendedHosts:
        hosts = PretendedHosts(failing or {})

        @contextmanager
        def lab(*spec: Any) -> Iterator[PretendedHosts]:
            yield hosts

        monkeypatch.setattr(session_module, "Lab", lab)
        monkeypatch.setattr(session_module, "launch", launch)
        return hosts

    return use


def test_all_is_kept_in_one_launch(tmp_path: Path, pretend: Callable[..., PretendedHosts]) -> None:
    hosts, seen = pretend(), list[Record]()
    Session(COMPARISON, 7, tmp_path / "r.jsonl").run(seen.append)
    assert hosts.launches == [["none #0", "qsgd #0", "fp16 #0"]]
    logs = read_results(tmp_path / "r.jsonl")
    assert [log.run.label for log in logs] == ["none", "qsgd", "fp16"]
    assert all(log.summary is not None and len(log.steps) == 1 for log in logs)
    assert logs[1].run.codec == "qsgd(bits=4)"
    assert (logs[0].run.parameters, logs[0].run.recipe["steps"]) == (7, 3)
    assert len([record for record in seen if isinstance(record, Step)]) == 3


def test_a_codec_that_fails_is_a_row_and_the_others_go_on(
    tmp_path: Path, pretend: Callable[..., PretendedHosts]
) -> None:
    hosts = pretend({"qsgd #0": "it broke"})
    Session(COMPARISON, 7, tmp_path / "r.jsonl").run(lambda record: None)
    assert hosts.launches == [["none #0", "qsgd #0", "fp16 #0"], ["fp16 #0"]]
    errors = {log.run.label: log.summary and log.summary.error for log in read_results(tmp_path / "r.jsonl")}
    assert errors == {"none": None, "qsgd": "it broke", "fp16": None}


def test_a_codec_that_fails_is_not_tried_with_further_seeds_until_resumed(
    tmp_path: Path, pretend: Callable[..., PretendedHosts]
) -> None:
    hosts, twice = pretend({"qsgd #0": "it broke"}), replace(COMPARISON, seeds=2)
    Session(twice, 7, tmp_path / "r.jsonl").run(lambda record: None)
    assert hosts.launches[1:] == [["fp16 #0", "none #1", "fp16 #1"]]
    failed = [log for log in read_results(tmp_path / "r.jsonl") if log.summary is not None and log.summary.error]
    assert [(log.run.run, log.summary and log.summary.error) for log in failed] == [("qsgd #0", "it broke")]
    hosts = pretend()
    Session(twice, 7, tmp_path / "r.jsonl", resume=True).run(lambda record: None)
    assert hosts.launches == [["qsgd #0", "qsgd #1"]]


def test_workers_that_die_without_a_word_are_a_row_as_well(
    tmp_path: Path, pretend: Callable[..., PretendedHosts]
) -> None:
    pretend({"none #0": ""})
    Session(COMPARISON, 7, tmp_path / "r.jsonl").run(lambda record: None)
    summary = read_results(tmp_path / "r.jsonl")[0].summary
    assert summary is not None
    assert summary.error == "[host0] torchrun says something"


def test_resuming_skips_what_is_done_and_tries_again_what_failed(
    tmp_path: Path, pretend: Callable[..., PretendedHosts]
) -> None:
    pretend({"qsgd #0": "it broke"})
    Session(COMPARISON, 7, tmp_path / "r.jsonl").run(lambda record: None)
    hosts = pretend()
    more = replace(COMPARISON, contenders=parse_contenders(["none,qsgd,fp16,bf16"]))
    Session(more, 7, tmp_path / "r.jsonl", resume=True).run(lambda record: None)
    assert hosts.launches == [["qsgd #0", "bf16 #0"]]
    logs = read_results(tmp_path / "r.jsonl")
    assert {log.run.label: log.summary and log.summary.error for log in logs} == dict.fromkeys(
        ("none", "qsgd", "fp16", "bf16")
    )
    Session(more, 7, tmp_path / "r.jsonl", resume=True).run(lambda record: None)
    assert len(hosts.launches) == 1


def test_results_are_not_overwritten_nor_mixed(tmp_path: Path, pretend: Callable[..., PretendedHosts]) -> None:
    pretend()
    (tmp_path / "r.jsonl").touch()  # nothing is lost with an empty file
    Session(COMPARISON, 7, tmp_path / "r.jsonl").run(lambda record: None)
    with pytest.raises(RecordError, match="add --resume"):
        Session(COMPARISON, 7, tmp_path / "r.jsonl")
    longer = replace(COMPARISON, recipe=replace(COMPARISON.recipe, steps=4))
    with pytest.raises(RecordError, match="steps is 3 there, 4 here"):
        Session(longer, 7, tmp_path / "r.jsonl", resume=True)
    timed = replace(COMPARISON, seconds=20.0)
    with pytest.raises(RecordError, match="mode is 'steps' there, 'seconds' here"):
        Session(timed, 7, tmp_path / "r.jsonl", resume=True)
    with pytest.raises(RecordError, match=r"target_accuracy is None there, 0\.7 here"):
        Session(replace(COMPARISON, target=0.7), 7, tmp_path / "r.jsonl", resume=True)
    elsewhere = replace(COMPARISON, lab=LabSpec(hosts=2, links="1gbit"))
    with pytest.raises(RecordError, match="link is 'none' there, '1gbit' here"):
        Session(elsewhere, 7, tmp_path / "r.jsonl", resume=True)


def test_runs_of_equal_time_are_kept_and_resumed_as_such(
    tmp_path: Path, pretend: Callable[..., PretendedHosts]
) -> None:
    timed = replace(COMPARISON, seconds=20.0, target=0.7, guess=0.1)
    hosts = pretend({"qsgd #0": "it broke"})
    Session(timed, 7, tmp_path / "r.jsonl").run(lambda record: None)
    run = read_results(tmp_path / "r.jsonl")[0].run
    assert (run.mode, run.seconds, run.target_accuracy, run.guess_accuracy) == ("seconds", 20.0, 0.7, 0.1)
    assert not {"steps", "evaluate_every"} & set(run.recipe)  # the clock sets both
    assert hosts.jobs[0].seconds == 20.0
    hosts = pretend()
    other_steps = replace(timed, recipe=replace(timed.recipe, steps=9))
    Session(other_steps, 7, tmp_path / "r.jsonl", resume=True).run(lambda record: None)
    assert hosts.launches == [["qsgd #0"]]
    with pytest.raises(RecordError, match=r"seconds is 20\.0 there, 30\.0 here"):
        Session(replace(timed, seconds=30.0), 7, tmp_path / "r.jsonl", resume=True)


def test_workers_that_never_begin_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Dead(PretendedHosts):
        def launch(self, argv: Sequence[str], procs: int, *, echo: Callable[[str], None]) -> int:
            echo("[host1] out of memory")
            return 137

    @contextmanager
    def lab(*spec: Any) -> Iterator[PretendedHosts]:
        yield Dead({})

    monkeypatch.setattr(session_module, "Lab", lab)
    monkeypatch.setattr(session_module, "launch", launch)
    with pytest.raises(LabError, match=r"before they began to train: .*out of memory"):
        Session(COMPARISON, 7, tmp_path / "r.jsonl").run(lambda record: None)


def test_epochs_become_steps_and_evaluations_are_spread() -> None:
    settled, parameters = prepared(COMPARISON, epochs=2, spread_evaluations=True)
    assert settled.guess == pytest.approx(0.1, abs=0.03)  # ten classes
    assert settled.recipe.steps == 2 * (8400 // 2 // 32)
    assert settled.recipe.evaluate_every == settled.recipe.steps // 10
    assert parameters == 87938


def test_wrong_settings_are_told_at_once() -> None:
    with pytest.raises(LabError, match="at least 2 ranks, not 1"):
        replace(COMPARISON, lab=LabSpec(hosts=1))
    with pytest.raises(RecipeError, match="nowhere"):
        prepared(replace(COMPARISON, recipe=replace(COMPARISON.recipe, data="nowhere")))


def test_a_job_is_read_back_as_it_was() -> None:
    trials = [trial for trial, _ in replace(COMPARISON, seeds=2).trials()]
    assert [trial.seed for trial in trials] == [0, 0, 0, 1, 1, 1]
    job = Job(recipe=COMPARISON.recipe, trials=trials, seconds=0.5, target=0.8)
    assert Job.from_json(job.to_json()) == job
    assert json.loads(job.to_json())["seconds"] == 0.5
