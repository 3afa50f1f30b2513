import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from thinwire_lab.lab import Lab, LabError, LabSpec, launch, run
from thinwire_lab.lab.keeper import marked_processes
from thinwire_lab.lab.launcher import announcement, host_environment, worker_command

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("nothing_left")]

ALL_REDUCE = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
values = torch.arange(5.0) + dist.get_rank()
dist.all_reduce(values)
print("sum", values.tolist(), sys.argv[1:])
print("to stderr", file=sys.stderr)
dist.destroy_process_group()
"""


def test_gloo_gets_the_shaped_interface_and_the_users_threads_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    env = host_environment(Lab(hosts=2, links="1gbit"), {"A": "b"})
    assert (env["GLOO_SOCKET_IFNAME"], env["TP_SOCKET_IFNAME"], env["OMP_NUM_THREADS"], env["A"]) == (
        "thin0",
        "thin0",
        "1",
        "b",
    )
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    env = host_environment(Lab(hosts=2), {})
    assert env["GLOO_SOCKET_IFNAME"] == "lo"
    assert "OMP_NUM_THREADS" not in env


def test_a_workers_output_goes_into_the_pipe_of_its_local_rank(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.argv[1:]); print('error', file=sys.stderr); sys.exit(3)")
    pipes = [os.pipe() for _ in range(2)]
    command = worker_command([str(script), "a b", "$HOME"], [writing for _, writing in pipes])
    # As torchrun does: the worker is a child of the process that holds the pipes, and inherits none of them.
    done = subprocess.run(command, env={**os.environ, "LOCAL_RANK": "1"}, capture_output=True)
    texts = []
    for reading, writing in pipes:
        os.close(writing)
        texts.append(os.read(reading, 1000).decode())
        os.close(reading)
    assert texts[0] == ""
    assert sorted(texts[1].splitlines()) == ["['a b', '$HOME']", "error"]
    assert (done.returncode, done.stdout, done.stderr) == (3, b"", b"")


@pytest.mark.parametrize(
    ("argv", "procs", "what"),
    [([], 1, "nothing to run"), (["missing.py"], 1, "'missing.py' is not a file"), (["-m", "x"], 0, "at least one")],
)
def test_what_cannot_run_is_refused_at_once(argv: list[str], procs: int, what: str) -> None:
    with Lab(hosts=1) as lab, pytest.raises(LabError, match=what):
        launch(lab, argv, procs)


@pytest.mark.distributed
@pytest.mark.parametrize("links", ["none", "1gbit"])
def test_an_unchanged_script_trains_over_the_links(links: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if links != "none":
        request.getfixturevalue("namespaces")
    script = tmp_path / "train.py"
    script.write_text(ALL_REDUCE)
    lines: list[str] = []
    with Lab(hosts=2, links=links) as lab:
        assert launch(lab, [str(script), "--epochs", "1"], echo=lines.append) == 0
    for rank in range(2):
        assert f"[host{rank} rank{rank}] sum [1.0, 3.0, 5.0, 7.0, 9.0] ['--epochs', '1']" in lines
        assert f"[host{rank} rank{rank}] to stderr" in lines


@pytest.mark.distributed
def test_the_first_failures_exit_code_comes_back_and_the_others_are_ended(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, sys, time; sys.exit(7) if os.environ['RANK'] == '3' else time.sleep(600)")
    lines: list[str] = []
    with Lab(hosts=2) as lab:
        start = time.monotonic()
        assert launch(lab, [str(script)], 2, echo=lines.append, grace=0.5) == 7
        assert time.monotonic() - start < 60
    assert "[host1] rank 3 ended with exit code 7" in lines


@pytest.mark.distributed
@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_run_and_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import time; print('started'); time.sleep(600)")
    # A shell starts background jobs with SIGINT ignored, and the children of pytest inherit that.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = "import sys; from thinwire_lab.lab import *; sys.exit(run(LabSpec(hosts=2, links='1gbit'), sys.argv[1:]))"
    launcher = subprocess.Popen(
        [sys.executable, "-c", f"{heard}; {code}", str(script)], stdout=subprocess.PIPE, text=True
    )
    assert launcher.stdout is not None
    started = [launcher.stdout.readline().strip() for _ in range(2)]
    assert sorted(started) == ["[host0 rank0] started", "[host1 rank1] started"]
    launcher.send_signal(number)
    assert launcher.wait(30) == 128 + number
    assert [mark for _, mark in marked_processes() if mark.startswith(f"thinwire-{launcher.pid}-")] == []
    launcher.stdout.close()


def told(lab: Lab, procs: int = 1) -> list[str]:
    return list(announcement(lab, 29500, ["train.py", "--name", "a b"], procs, {"OMP_NUM_THREADS": "2"}))


def test_the_announcement_names_hosts_links_and_command() -> None:
    hosts, links, namespaces, command, others = told(Lab(hosts=3, links="1gbit,100mbit,1gbit", latency="2ms"), 2)
    assert hosts == "hosts: 3; ranks on each host: 2"
    assert links == "links, in each direction: 1gbit (host0 host2), 100mbit (host1); latency 2ms"
    assert namespaces == "4 network namespaces made: host0 10.77.0.1 to host2 10.77.0.3, and the switch between them"
    assert "OMP_NUM_THREADS=2" in command
    assert "GLOO_SOCKET_IFNAME=thin0" in command
    assert "torchrun --nnodes=3 --node-rank=0 --nproc-per-node=2 --master-addr=10.77.0.1" in command
    assert command.endswith("--local-addr=10.77.0.1 train.py --name 'a b'")
    assert "--node-rank" in others
    assert told(Lab(hosts=1, links="1gbit"))[1:3] == [
        "links, in each direction: 1gbit; latency 0ms",
        "2 network namespaces made: host0 10.77.0.1, and the switch between them",
    ]
    assert "no network namespaces" in told(Lab(hosts=2))[1]


@pytest.mark.usefixtures("namespaces")
def test_what_runs_is_told_before_the_script_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('started')")
    assert run(LabSpec(hosts=1, links="1gbit"), [str(script)], tell=print) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "hosts: 1; ranks on each host: 1"
    assert lines[2].startswith("2 network namespaces made")
    assert lines[3].endswith(str(script))
    assert lines[4:] == ["[host0 rank0] started"]


def test_nothing_is_told_of_a_script_that_cannot_run() -> None:
    lines: list[str] = []
    with pytest.raises(LabError, match="not a file"):
        run(LabSpec(hosts=1), ["missing.py"], tell=lines.append)
    assert lines == []


def test_run_puts_signal_handlers_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(LabError):
        run(LabSpec(hosts=1), ["missing.py"])
    assert signal.getsignal(signal.SIGTERM) is before
