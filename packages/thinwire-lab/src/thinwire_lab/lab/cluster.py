"""A lab that is up: hosts to start processes on, and the promise that nothing of it outlives its owner."""

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Literal

from thinwire_lab.lab import keeper, network
from thinwire_lab.lab.rates import LabError, LabSpec

_lab_numbers = itertools.count()
Place = int | Literal["switch"]


class Lab:
    """Hosts joined by thin links, for the duration of a `with` block.

        with Lab(hosts=4, links="1gbit,1gbit,100mbit,1gbit") as lab:
            lab.popen(0, ["ping", "-c1", "host2"]).wait()
            exit_code = launch(lab, ["train.py", "--epochs", "1"])

    Uses root where it is root, otherwise a user namespace in which an ordinary user may make networks.
    """

    def __init__(self, hosts: int = 4, links: str = "none", latency: str = "0ms") -> None:
        self.spec = LabSpec(hosts=hosts, links=links, latency=latency)
        self.name = keeper.lab_name(next(_lab_numbers))
        self._process_numbers = itertools.count()
        self._running: dict[int, tuple[subprocess.Popen[bytes], str]] = {}  # by pid, with the mark
        self._keeper: subprocess.Popen[str] | None = None
        self._holders: list[int] = []
        self._in_user_namespace = False

    def __enter__(self) -> "Lab":
        keeper.remove_leftovers()
        if not self.spec.is_loopback:
            network.require_tools()
        try:
            self._start_keeper()
            if not self.spec.is_loopback:
                self._wire()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def interface(self) -> str:
        """The network interface a host's traffic to other hosts goes through."""
        return "lo" if self.spec.is_loopback else network.INTERFACE

    def address(self, place: Place) -> str:
        """IPv4 address of a host, or of the switch, which is behind no thin link."""
        if self.spec.is_loopback:
            return "127.0.0.1"
        return network.switch_address() if place == "switch" else network.host_address(place)

    def popen(
        self,
        place: Place,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[bytes] | None = subprocess.DEVNULL,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> "subprocess.Popen[bytes]":
        """Starts a command on a host, in the current folder; `env` is added to the current environment.

        The process is the command itself (no wrapper stays in between), in a session of its own, so that a Ctrl-C in
        the terminal reaches the launcher alone.
        """
        if place != "switch" and not 0 <= place < self.spec.hosts:
            raise LabError(f"this lab has the hosts 0 to {self.spec.hosts - 1}, not {place}; choose one of them")
        if self._keeper is None:
            raise LabError(f"the lab {self.name} is not up; use it inside its `with` block")
        mark = f"{self.name}.{next(self._process_numbers)}"
        process = subprocess.Popen(
            [*self._enter(place), *argv],
            env={**os.environ, **(env or {}), keeper.MARK: mark},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            start_new_session=True,
        )
        self._running[process.pid] = (process, mark)
        return process

    def end(self, processes: Sequence["subprocess.Popen[bytes]"], grace: float = 5.0) -> None:
        """Asks processes to end, waits for at most the grace time, then kills them and all they have started."""
        for process in processes:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + grace
        try:
            while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
                time.sleep(0.02)
        finally:
            marks = {self._running.pop(process.pid)[1] for process in processes if process.pid in self._running}
            keeper.kill_marked(lambda mark: mark in marks)
            for process in processes:
                process.wait()

    def close(self) -> None:
        """Kills what still runs on the hosts and lets the kernel take the namespaces down; harmless twice."""
        if self._keeper is None:
            return
        keeping, self._keeper = self._keeper, None
        keeper.kill_marked(lambda mark: mark.startswith(f"{self.name}."))
        keeping.communicate()
        for process, _ in self._running.values():
            process.wait()
        self._running.clear()
        self._holders.clear()

    def _start_keeper(self) -> None:
        """Namespaces by root's right, else by that of a user namespace; the last refusal is explained."""
        user = ["unshare", "--user", "--map-root-user", "--mount", "--"]
        root = ["unshare", "--mount", "--"]
        if self.spec.is_loopback:
            attempts: list[list[str]] = [[]]
        else:
            attempts = [root, user] if os.geteuid() == 0 else [user]
        refusal = ""
        for attempt in attempts:
            pids, refusal = self._try_keeper(attempt)
            if pids is not None:
                self._holders = pids
                self._in_user_namespace = attempt == user
                return
        raise network.explain_refused_namespaces(refusal)

    def _try_keeper(self, unshare: Sequence[str]) -> tuple[list[int] | None, str]:
        names = [] if self.spec.is_loopback else ["switch", *(f"host{host}" for host in range(self.spec.hosts))]
        script = [sys.executable, "-IS", str(Path(keeper.__file__))]
        mark = f"{self.name}.keeper"
        keeping = subprocess.Popen(
            [*unshare, *script, mark, network.hosts_table(self.spec.hosts), *names],
            env={**os.environ, keeper.MARK: mark},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._keeper = keeping
        assert keeping.stdout is not None
        answer = keeping.stdout.readline()
        if answer:
            return [int(pid) for pid in answer.split()], ""
        self._keeper = None
        refusal = keeping.communicate()[1].strip()
        return None, refusal.splitlines()[0] if refusal else f"the keeper ended with {keeping.returncode}"

    def _wire(self) -> None:
        for pid, command in network.wiring(self.spec, self._holders[0], self._holders[1:]):
            tool = network.find_tool(command[0]) or command[0]
            argv = [*self._namespaces_of(pid, "--net"), tool, *command[1:]]
            done = subprocess.run(argv, capture_output=True, text=True)
            if done.returncode != 0:
                raise network.explain_failed_command(command, done.stderr)

    def _namespaces_of(self, pid: int, *kinds: str) -> list[str]:
        user = ["--user", "--preserve-credentials"] if self._in_user_namespace else []
        return ["nsenter", "--target", str(pid), *user, *kinds, "--"]

    def _enter(self, place: Place) -> list[str]:
        """What to put before a command so that it runs on a host, in the folder we are in."""
        if self.spec.is_loopback:
            return []
        holder = self._holders[0 if place == "switch" else place + 1]
        # Entering a mount namespace leads to its root folder.
        return [*self._namespaces_of(holder, "--mount", "--net", "--uts"), "env", f"--chdir={os.getcwd()}"]


def why_no_thin_links() -> LabError | None:
    """Tries the smallest lab: None when this machine can shape links, otherwise the error with the remedy."""
    try:
        with Lab(hosts=1, links="1gbit"):
            return None
    except LabError as error:
        return error
