"""`thinwire run`: an unchanged training script under torchrun on all hosts of a lab, with one readable output."""

import os
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from thinwire_lab.lab.cluster import Lab
from thinwire_lab.lab.rates import LabError, LabSpec, show_rate

_COLOURS = (36, 33, 32, 35, 34, 31)
_TORCHRUN = Path(__file__).with_name("torchrun_host.py")


def run(
    spec: LabSpec,
    argv: Sequence[str],
    procs_per_host: int = 1,
    grace: float = 10.0,
    tell: Callable[[str], None] | None = None,
) -> int:
    """Makes a lab, runs a script in it, takes the lab down; the exit code is the script's.

    `tell` receives lines on what was made and what will run, before the script starts. After SIGINT, SIGTERM or SIGHUP
    the hosts get SIGTERM and a moment to end; the code is then 128 + signal.
    """
    try:
        with _signals_raise(), Lab(spec.hosts, spec.links, spec.latency) as lab:
            return launch(lab, argv, procs_per_host, grace=grace, tell=tell)
    except _Stopped as stopped:
        return 128 + stopped.signal


def launch(
    lab: Lab,
    argv: Sequence[str],
    procs_per_host: int = 1,
    *,
    env: Mapping[str, str] | None = None,
    echo: Callable[[str], None] | None = None,
    grace: float = 10.0,
    tell: Callable[[str], None] | None = None,
) -> int:
    """Runs `argv` (a script and its arguments, or `-m module ...`) on every host; the first failure's exit code, or 0.

    Each line of output goes to `echo` with the rank it came from (default: standard output, coloured on a terminal).
    When a host fails, the others get the grace time to notice and end by themselves.
    """
    _check_script(argv, procs_per_host)
    port = 29500 if not lab.spec.is_loopback else _free_port()
    if tell is not None:
        for line in announcement(lab, port, argv, procs_per_host, env or {}):
            tell(line)
    output = _Output(echo or _print_line)
    jobs: list[subprocess.Popen[bytes]] = []
    try:
        for host in range(lab.spec.hosts):
            jobs.append(_start_host(lab, host, port, argv, procs_per_host, env or {}, output))
        return _wait(lab, jobs, output, grace)
    finally:
        try:
            lab.end(jobs)
        finally:
            output.close()


def host_environment(lab: Lab, given: Mapping[str, str]) -> dict[str, str]:
    """Variables a host's processes get: Gloo and TensorPipe on the shaped link; the user's own settings win."""
    names = {"GLOO_SOCKET_IFNAME": lab.interface, "TP_SOCKET_IFNAME": lab.interface}
    defaults = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return {**{name: value for name, value in defaults.items() if name not in os.environ}, **names, **given}


def worker_command(argv: Sequence[str], rank_fds: Sequence[int]) -> list[str]:
    """The command of each worker: Python on the script, its output sent into the pipe of its rank.

    torchrun closes inherited files, but holds the pipes open itself, where its children can reach them.
    """
    cases = " ".join(f"{rank}) fd={fd};;" for rank, fd in enumerate(rank_fds))
    redirect = f'case $LOCAL_RANK in {cases} esac; exec "$@" >/proc/$PPID/fd/$fd 2>&1'
    return ["sh", "-c", redirect, "sh", sys.executable, *argv]


@dataclass
class _Source:
    label: str
    colour: int
    pending: bytes = b""


class _Output:
    """Joins the pipes of all ranks into whole lines with labels."""

    def __init__(self, echo: Callable[[str], None]) -> None:
        self._echo = echo
        self._selector = selectors.DefaultSelector()
        self._is_coloured = echo is _print_line and sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def open_pipe(self, label: str, colour: int) -> int:
        """A new pipe; returns the end to write into, which the caller closes once a process has it."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        self._selector.register(reading, selectors.EVENT_READ, _Source(label, colour))
        return writing

    def pump(self, timeout: float) -> bool:
        """Passes on what has arrived, waiting for at most the timeout; whether there was anything."""
        if not self._selector.get_map():
            time.sleep(timeout)
            return False
        events = self._selector.select(timeout)
        for key, _ in events:
            source: _Source = key.data
            chunk = os.read(key.fd, 1 << 16)
            if not chunk:
                self._selector.unregister(key.fd)
                os.close(key.fd)
            # A progress bar ends its lines with \r; a last line may have no end at all.
            *lines, source.pending = (source.pending + chunk).replace(b"\r", b"\n").split(b"\n")
            if not chunk:
                lines.append(source.pending)
            for line in lines:
                if line.strip():
                    self._echo(self._labelled(source, line.decode(errors="replace")))
        return bool(events)

    def _labelled(self, source: _Source, line: str) -> str:
        label = f"[{source.label}]"
        return f"\033[{source.colour}m{label}\033[0m {line}" if self._is_coloured else f"{label} {line}"

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)
        self._selector.close()


def _start_host(
    lab: Lab,
    host: int,
    port: int,
    argv: Sequence[str],
    procs_per_host: int,
    env: Mapping[str, str],
    output: _Output,
) -> "subprocess.Popen[bytes]":
    first = host * procs_per_host
    own_fd = output.open_pipe(f"host{host}", 2)
    ranks = range(first, first + procs_per_host)
    rank_fds = [output.open_pipe(f"host{host} rank{rank}", _COLOURS[rank % len(_COLOURS)]) for rank in ranks]
    # without a folder for logs torchrun makes one for each run, and leaves it behind
    options = [*_torchrun_options(lab, host, port, procs_per_host), f"--log-dir={os.devnull}"]
    torchrun = [sys.executable, str(_TORCHRUN), *options]
    try:
        return lab.popen(
            host,
            [*torchrun, "--no-python", *worker_command(argv, rank_fds)],
            env=host_environment(lab, env),
            stdout=own_fd,
            stderr=own_fd,
            pass_fds=rank_fds,
        )
    finally:
        for fd in (own_fd, *rank_fds):
            os.close(fd)


def _torchrun_options(lab: Lab, host: int, port: int, procs_per_host: int) -> list[str]:
    options = {
        "nnodes": lab.spec.hosts,
        "node-rank": host,
        "nproc-per-node": procs_per_host,
        "master-addr": lab.address(0),
        "master-port": port,
        "local-addr": lab.address(host),
    }
    return [f"--{name}={value}" for name, value in options.items()]


def announcement(
    lab: Lab, port: int, argv: Sequence[str], procs_per_host: int, env: Mapping[str, str]
) -> Iterator[str]:
    """Lines on the hosts, their links, the namespaces that were made, and the command that each host runs."""
    spec = lab.spec
    yield f"hosts: {spec.hosts}; ranks on each host: {procs_per_host}"
    if spec.is_loopback:
        yield "link none: all hosts are this machine and talk over its loopback; no network namespaces are made"
    else:
        yield f"links, in each direction: {_links(spec)}; latency {spec.latency}"
        last = f" to host{spec.hosts - 1} {lab.address(spec.hosts - 1)}" if spec.hosts > 1 else ""
        yield f"{spec.hosts + 1} network namespaces made: host0 {lab.address(0)}{last}, and the switch between them"
    variables = [f"{name}={value}" for name, value in host_environment(lab, env).items()]
    command = [*variables, "torchrun", *_torchrun_options(lab, 0, port, procs_per_host), *argv]
    yield f"host0 runs: {shlex.join(command)}"
    if spec.hosts > 1:
        yield "the others run the same with a --node-rank and a --local-addr of their own"


def _links(spec: LabSpec) -> str:
    """The rate of all links, or the hosts of each rate."""
    hosts_of: dict[str, list[str]] = {}
    for host, rate in enumerate(spec.rates):
        hosts_of.setdefault(show_rate(rate), []).append(f"host{host}")
    if len(hosts_of) == 1:
        return next(iter(hosts_of))
    return ", ".join(f"{rate} ({' '.join(hosts)})" for rate, hosts in hosts_of.items())


def _wait(lab: Lab, jobs: Sequence["subprocess.Popen[bytes]"], output: _Output, grace: float) -> int:
    """Shows output until all hosts have ended, or one has failed and the grace time is over."""
    first_failure = 0
    deadline = float("inf")
    running = list(jobs)
    while running and time.monotonic() < deadline:
        output.pump(0.05)
        for job in [job for job in running if job.poll() is not None]:
            running.remove(job)
            if job.returncode != 0 and first_failure == 0:
                first_failure = job.returncode if job.returncode > 0 else 128 - job.returncode
                deadline = time.monotonic() + grace
    lab.end(jobs)  # also what a script has left running behind torchrun's back, so that the pipes come to an end
    while output.pump(0.0):
        continue
    return first_failure


def _check_script(argv: Sequence[str], procs_per_host: int) -> None:
    if procs_per_host < 1:
        raise LabError(f"a host runs at least one process, not {procs_per_host}; set --procs-per-host to 1 or more")
    if not argv:
        raise LabError("there is nothing to run; give a script after `--`, for example `-- train.py --epochs 1`")
    if argv[0] != "-m" and not Path(argv[0]).is_file():
        raise LabError(f"the script {argv[0]!r} is not a file in {os.getcwd()}; give its path, or `-m` and a module")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _print_line(line: str) -> None:
    print(line, flush=True)


class _Stopped(BaseException):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Turns the signals that end a program into an exception, so that the lab is taken down on the way out."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise _Stopped(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:  # nohup stays nohup
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
