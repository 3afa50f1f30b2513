"""Ranks that die, programs that end early: nobody waits for ever, and nothing crashes on the way out."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import thinwire
from tests.ddp.cases import ddp, net, train
from tests.distributed.processes import run_ranks

ROOT = Path(__file__).resolve().parents[2]


def die_in_the_middle_of_a_step(rank: int, ranks: int) -> tuple[float, str]:
    model = ddp(net(), bucket_cap_mb=0.01)
    handle = thinwire.attach(model, "topk(density=0.05)")
    train(model, rank, range(2))
    right = handle.engine.average

    def deadly(pieces: Any, world: Any, whole: Any = None) -> None:
        if any(piece.name == "second.weight" for piece in pieces):
            os.kill(os.getpid(), signal.SIGKILL)
        right(pieces, world, whole)

    if rank == ranks - 1:
        handle.engine.average = deadly  # type: ignore[method-assign]
    began = time.monotonic()
    with pytest.raises(thinwire.WorldError) as caught:
        train(model, rank, range(2, 4))
    return time.monotonic() - began, str(caught.value)


@pytest.mark.distributed
@pytest.mark.timeout(120)
def test_a_dead_rank_is_an_error_on_every_other() -> None:
    for rank, (seconds, message) in enumerate(run_ranks(3, die_in_the_middle_of_a_step, dying=1)):
        assert seconds < 35  # the group's time-out is 30 s; a broken connection is noticed at once
        assert message.startswith(f"rank {rank} of 3: All")
        assert "failed; rank 2 is gone" in message
        assert f"[rank {rank}, step 2, averaging " in message
        assert "second.weight" in message or "first.weight" in message


def start(mode: str, rank: int, ranks: int, store: Path) -> "subprocess.Popen[str]":
    return launch("tests.ddp.endings", mode, str(rank), str(ranks), str(store))


def launch(module: str, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", module, *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.distributed
@pytest.mark.timeout(120)
def test_programs_end_cleanly_with_nothing_closed(tmp_path: Path) -> None:
    processes = {
        "normal": start("normal", 0, 1, tmp_path / "one"),
        "raising": start("raise", 0, 2, tmp_path / "two"),
        "left alone": start("raise", 1, 2, tmp_path / "two"),
    }
    told = {}
    try:
        for name, process in processes.items():
            told[name] = (*process.communicate(timeout=100), process.returncode)
    finally:
        for process in processes.values():
            process.kill()
    for _, errors, code in told.values():
        assert code in (0, 1), errors  # not killed by a signal
        assert not any(words in errors for words in ("Fatal Python error", "terminate called", "Segmentation"))
    assert told["normal"] == ("the end\n", told["normal"][1], 0)
    assert "ArithmeticError: in the middle of backward" in told["raising"][1]
    assert told["raising"][2] == 1
    assert "WorldError: rank 1 of 2: All" in told["left alone"][1]
    assert told["left alone"][2] == 1


@pytest.mark.timeout(120)
def test_a_program_waits_for_work_in_flight_unless_it_failed(tmp_path: Path) -> None:
    """Python would end the threads in the middle of C++ code, which aborts the process."""
    modes = ["lane", "failed", *(["gloo"] if sys.platform == "linux" else [])]  # only Linux shows what a thread does
    processes = {mode: launch("tests.ddp.last_work", mode, str(tmp_path / mode)) for mode in modes}
    try:
        told = {mode: (*process.communicate(timeout=100), process.returncode) for mode, process in processes.items()}
    finally:
        for process in processes.values():
            process.kill()
    assert {mode: (out, code) for mode, (out, _, code) in told.items() if mode != "failed"} == {
        mode: ("done\n", 0) for mode in modes if mode != "failed"
    }, told
    out, errors, code = told["failed"]
    assert (out, code) == ("", 1)
    assert "ArithmeticError: while a peer waits elsewhere" in errors
