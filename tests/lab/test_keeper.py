import os
import subprocess
import sys

import pytest

from thinwire_lab.lab import keeper

NAP = [sys.executable, "-ISc", "print(flush=True); import time; time.sleep(60)"]


def marked(mark: str) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(NAP, env={**os.environ, keeper.MARK: mark}, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.fixture
def dead_launcher() -> str:
    """The name of a lab whose launcher has ended."""
    code = "from thinwire_lab.lab import keeper; print(keeper.lab_name(0))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_names_tell_labs_apart_and_name_this_process() -> None:
    assert keeper.lab_name(0) != keeper.lab_name(1)
    assert keeper.lab_name(0).split("-")[1] == str(os.getpid())


def test_a_live_launcher_has_no_leftovers() -> None:
    assert not keeper.is_leftover(f"{keeper.lab_name(0)}.3")


def test_a_dead_launchers_mark_is_a_leftover(dead_launcher: str) -> None:
    assert keeper.is_leftover(f"{dead_launcher}.3")


def test_another_process_with_the_launchers_pid_does_not_save_it() -> None:
    start = keeper.start_time(os.getpid())
    assert start is not None
    assert keeper.is_leftover(f"thinwire-{os.getpid()}-{start - 1}-0.keeper")


def test_a_zombie_launcher_is_dead() -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert keeper.start_time(process.pid) is None
    process.wait()


@pytest.mark.parametrize(
    "mark", ["", "thinwire", "thinwire-1-2", "thinwire-a-1-1", "other-999999-1-0", "thinwire--1-1-0"]
)
def test_foreign_marks_are_left_alone(mark: str) -> None:
    assert not keeper.is_leftover(mark)


def test_only_leftovers_are_removed(dead_launcher: str) -> None:
    ours, theirs = marked(f"{keeper.lab_name(99)}.0"), marked(f"{dead_launcher}.0")
    try:
        assert keeper.remove_leftovers() >= 1
        assert theirs.wait(10) == -9
        assert ours.poll() is None
        assert (ours.pid, f"{keeper.lab_name(99)}.0") in list(keeper.marked_processes())
    finally:
        for process in (ours, theirs):
            process.kill()
            process.communicate()
