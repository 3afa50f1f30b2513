import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from thinwire_lab.lab import Lab, LabError, LabSpec, measure_links, why_no_thin_links
from thinwire_lab.lab.keeper import marked_processes
from thinwire_lab.lab.network import CONGESTION_CONTROLS

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("nothing_left")]


def output_of(lab: Lab, host: int, *argv: str) -> str:
    process = lab.popen(host, argv, stdout=subprocess.PIPE)
    text = process.communicate(timeout=20)[0].decode()
    assert process.returncode == 0
    return text


def machine_interfaces() -> set[str]:
    return set(os.listdir("/sys/class/net"))


@pytest.mark.distributed
@pytest.mark.usefixtures("namespaces")
def test_a_host_knows_its_name_its_address_and_our_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ask = "import os, socket; n = socket.gethostname(); print(n, socket.gethostbyname(n), os.getcwd(), os.environ['A'])"
    before = machine_interfaces()
    with Lab(hosts=2, links="1gbit") as lab:
        process = lab.popen(1, [sys.executable, "-c", ask], env={"A": "b"}, stdout=subprocess.PIPE)
        assert process.communicate(timeout=20)[0].decode().split() == ["host1", "10.77.0.2", str(tmp_path), "b"]
        assert machine_interfaces() == before


@pytest.mark.distributed
@pytest.mark.usefixtures("namespaces")
def test_every_host_has_a_usual_congestion_control() -> None:
    with Lab(hosts=1, links="1gbit") as lab:
        setting = output_of(lab, 0, "cat", "/proc/sys/net/ipv4/tcp_congestion_control")
    assert setting.strip() in CONGESTION_CONTROLS


@pytest.mark.distributed
@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize("user", ["ourselves", "user namespace"])
def test_links_carry_their_rate(user: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if user == "user namespace":
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        if (error := why_no_thin_links()) is not None:
            pytest.skip(f"no user namespaces here: {error}")
    best = [0.0] * 4
    for _ in range(6):  # never above the rate; close to it as soon as the machine is not busy with something else
        speeds = measure_links(LabSpec(hosts=2, links="100mbit"), seconds=0.6)
        assert [speed.host for speed in speeds] == [0, 1]
        seen = [mbit for speed in speeds for mbit in (speed.sent_mbit, speed.received_mbit)]
        assert max(seen) < 100
        best = [max(pair) for pair in zip(best, seen, strict=True)]
        if min(best) > 80:
            return
    pytest.fail(f"links of 100 Mbit/s carried {best} at best")


@pytest.mark.distributed
@pytest.mark.usefixtures("namespaces")
def test_two_labs_at_the_same_time_do_not_meet() -> None:
    with Lab(hosts=1, links="1gbit") as one, Lab(hosts=1, links="1gbit") as two:
        networks = {output_of(lab, 0, "readlink", "/proc/self/ns/net") for lab in (one, two)}
        assert len(networks | {os.readlink("/proc/self/ns/net") + "\n"}) == 3
        one.close()
        assert output_of(two, 0, "echo", "alive") == "alive\n"


@pytest.mark.distributed
@pytest.mark.usefixtures("namespaces")
def test_latency_works_or_says_what_the_kernel_lacks() -> None:
    ask = "import socket,time; s=socket.socket(); t=time.time(); s.connect_ex(('host1', 9)); print(time.time()-t)"
    try:
        with Lab(hosts=2, links="1gbit", latency="20ms") as lab:
            assert float(output_of(lab, 0, sys.executable, "-c", ask)) >= 0.04
    except LabError as error:
        assert "sch_netem" in str(error)  # noqa: PT017 - which of the two holds depends on the kernel


@pytest.mark.parametrize("links", ["none", pytest.param("1gbit", marks=pytest.mark.distributed)])
def test_what_hosts_started_ends_with_the_lab(links: str, request: pytest.FixtureRequest) -> None:
    if links != "none":
        request.getfixturevalue("namespaces")
    with Lab(hosts=2, links=links) as lab:
        stubborn = lab.popen(1, ["sh", "-c", "trap '' TERM; setsid sleep 60 & echo; sleep 60"], stdout=subprocess.PIPE)
        assert stubborn.stdout is not None
        stubborn.stdout.readline()
        lab.end([stubborn], grace=0.1)
        stubborn.stdout.close()
        assert stubborn.returncode == -signal.SIGKILL
        assert all(mark.endswith(".keeper") for _, mark in marked_processes() if mark.startswith(f"{lab.name}."))
        lab.popen(0, ["setsid", "sleep", "60"])


def test_an_exception_takes_the_lab_down() -> None:
    lab = Lab(hosts=1)

    def fail_inside() -> None:
        with lab:
            lab.popen(0, ["sleep", "60"])
            raise KeyError

    with pytest.raises(KeyError):
        fail_inside()
    assert [pid for pid, mark in marked_processes() if mark.startswith(f"{lab.name}.")] == []


def test_a_host_that_is_not_there_is_refused() -> None:
    with Lab(hosts=2) as lab, pytest.raises(LabError, match="hosts 0 to 1, not 2"):
        lab.popen(2, ["true"])


def test_a_machine_that_forbids_namespaces_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for tool in ("ip", "tc", "nsenter"):
        (tmp_path / tool).symlink_to("/bin/true")
    (tmp_path / "unshare").write_text("#!/bin/sh\necho 'unshare: not permitted' >&2; exit 1\n")
    (tmp_path / "unshare").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    error = why_no_thin_links()
    assert error is not None
    assert "unshare: not permitted" in str(error)
    assert "--link none" in str(error)


def test_a_lab_that_is_down_starts_nothing() -> None:
    with pytest.raises(LabError, match="not up"):
        Lab(hosts=2).popen(0, ["true"])


LAUNCHER = """
from thinwire_lab.lab import Lab
with Lab(hosts=2, links="{links}") as lab:
    processes = [lab.popen(host, ["sh", "-c", "setsid sleep 60 & exec sleep 60"]) for host in range(2)]
    print(lab.name, lab._keeper.pid, flush=True)
    processes[0].wait()
"""


@pytest.mark.distributed
@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize("links", ["none", "1gbit"])
@pytest.mark.parametrize("keeper", ["works", "is stopped"])
def test_a_killed_launcher_leaves_nothing_behind(links: str, keeper: str) -> None:
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER.format(links=links)], stdout=subprocess.PIPE)
    assert launcher.stdout is not None
    name, keeper_pid = launcher.stdout.readline().decode().split()

    def left() -> list[int]:
        return [pid for pid, mark in marked_processes() if mark.startswith(f"{name}.")]

    while len(left()) < 3:  # shells are still starting; the time limit of the test bounds the wait
        time.sleep(0.02)
    if keeper == "is stopped":
        os.kill(int(keeper_pid), signal.SIGSTOP)
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    if keeper == "is stopped":
        assert len(left()) >= 3
        with Lab(hosts=1):  # the next lab, whatever its links, clears up first
            assert left() == []
    else:
        while left():  # the keeper is at it; the time limit of the test bounds the wait
            time.sleep(0.02)
