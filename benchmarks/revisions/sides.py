"""The ranks of one revision, and both revisions measured in turns.

The ranks of both sides live at the same time, and those of one side wait for input while the other side is measured.
Processes of kernels are started anew after some rounds, because a process can be fast or slow from its start to its
end, for instance by the place of its memory. With several ranks this matters less, and starting them takes longer.
"""

import json
import os
import selectors
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from benchmarks.revisions.cases import RANKS, Case
from benchmarks.revisions.installing import ROOT, plain_environment
from benchmarks.revisions.links import LOOPBACK, Link, LinkError, opened_link

OLD, NEW = "old", "new"
REPLY_TIMEOUT = 300.0  # seconds; ranks give up a silent peer earlier
END_TIMEOUT = 20.0
SAMPLE = {"kernels": 0.1, "averages": 0.15, "steps": 0.6}  # seconds that a sample should take
MOST_CALLS = 1000
LAUNCHES = {"kernels": 3, "averages": 1, "steps": 1}  # of all processes, among which the rounds are divided


class MeasuringError(RuntimeError):
    """A rank that ended, was silent, or disagreed with the others."""


@dataclass
class Row:
    """A case with all samples of both sides in the order of rounds, or the reason why there are none."""

    case: Case
    wall: dict[str, list[float]] = field(default_factory=lambda: {OLD: [], NEW: []})
    processor: dict[str, list[float]] = field(default_factory=lambda: {OLD: [], NEW: []})
    skipped: str | None = None

    def add(self, side: str, sample: Mapping[str, float]) -> None:
        self.wall[side].append(sample["wall"])
        self.processor[side].append(sample["processor"])


class Side:
    """The ranks of one revision, which all get the same request and are all waited for."""

    def __init__(self, name: str, processes: Sequence["subprocess.Popen[bytes]"], errors: Sequence[IO[bytes]]) -> None:
        self.name, self.processes, self.errors = name, processes, errors

    def ask(self, **request: Any) -> list[dict[str, Any]]:
        """The replies of all ranks, in the order of ranks."""
        for process in self.processes:
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
            except BrokenPipeError:
                raise self.failure("ended") from None
        return [json.loads(line) for line in self._lines()]

    def _lines(self) -> list[bytes]:
        lines = [b""] * len(self.processes)
        deadline = time.monotonic() + REPLY_TIMEOUT
        with selectors.DefaultSelector() as selector:
            for rank, process in enumerate(self.processes):
                assert process.stdout is not None
                selector.register(process.stdout, selectors.EVENT_READ, rank)
            while selector.get_map():
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise self.failure(f"gave no reply in {REPLY_TIMEOUT:.0f} seconds")
                for key, _ in ready:
                    piece = os.read(key.fd, 1 << 16)
                    if not piece:
                        raise self.failure("ended")
                    lines[key.data] += piece
                    if piece.endswith(b"\n"):
                        selector.unregister(key.fileobj)
        return lines

    def failure(self, what: str) -> MeasuringError:
        """What a rank said last of those that said anything."""
        for file in self.errors:
            file.seek(0)
        said = [text for file in self.errors if (text := file.read().decode(errors="replace").strip())]
        last = "\n".join(said[0].splitlines()[-15:]) if said else "nothing"
        return MeasuringError(f"a rank of the {self.name} revision {what}; its standard error says:\n{last}")

    def sample(self, calls: int, **request: Any) -> dict[str, Any]:
        """Seconds of one call: those of the slowest rank by the clock, and the mean of the ranks' processor times."""
        replies = self.ask(calls=calls, **request)
        refused = [reply["refused"] for reply in replies if "refused" in reply]
        if len(refused) == len(replies):
            return {"refused": refused[0]}
        if refused:
            raise self.failure(f"cannot do what others can ({refused[0]})")
        processor = [reply["processor"] for reply in replies]
        return {"wall": max(reply["wall"] for reply in replies), "processor": sum(processor) / len(processor)}


@contextmanager
def started(name: str, python: Path, link: Link, ranks: int) -> Iterator[Side]:
    """The ranks of a revision; they end with the block, or when this process ends and with it their input."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    shared = {"MASTER_ADDR": link.addresses[0], "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    # One thread, as torchrun sets it.
    shared |= {"GLOO_SOCKET_IFNAME": link.interface, "OMP_NUM_THREADS": "1"}
    with ExitStack() as stack:
        errors = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(ranks)]
        processes: list[subprocess.Popen[bytes]] = []
        stack.callback(_end, processes)
        for rank in range(ranks):
            command = [*link.enter[rank], str(python), "-m", "benchmarks.revisions.worker"]
            environment = {**plain_environment(), **shared, "RANK": str(rank)}
            pipe = subprocess.PIPE
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, stderr=errors[rank], bufsize=0
            )
            processes.append(process)
        yield Side(name, processes, errors)


def _end(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    for process in processes:
        if process.stdin is not None:
            process.stdin.close()
    deadline = time.monotonic() + END_TIMEOUT
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def measure(cases: Sequence[Case], pythons: Mapping[str, Path], rounds: int, tell: Callable[[str], None]) -> list[Row]:
    """All cases, in groups that share a part and a link; those of a link that cannot be made are skipped."""
    rows = [Row(case) for case in cases]
    groups = {(row.case.part, row.case.link): [r for r in rows if _group(r) == _group(row)] for row in rows}
    for (part, name), group in groups.items():
        ranks = 1 if part == "kernels" else RANKS
        launches = min(rounds, LAUNCHES[part])
        for launch in range(launches):
            some = len(range(launch, rounds, launches))
            try:
                with opened_link(name or LOOPBACK, ranks) as link:
                    _launch(group, pythons, link, ranks, range(launch, launch + some), tell)
            except LinkError as error:
                for row in group:
                    row.skipped = f"no link of {name}: {error}"
                break
    return rows


def _group(row: Row) -> tuple[str, str | None]:
    return row.case.part, row.case.link


def _launch(
    rows: Sequence[Row],
    pythons: Mapping[str, Path],
    link: Link,
    ranks: int,
    rounds: range,
    tell: Callable[[str], None],
) -> None:
    with ExitStack() as stack:
        sides = [stack.enter_context(started(name, python, link, ranks)) for name, python in pythons.items()]
        for row in rows:
            if row.skipped is None:
                tell(row.case.title)
                measure_row(row, sides, rounds)


def measure_row(row: Row, sides: Sequence[Side], rounds: range) -> None:
    """Both sides in turns; the side that begins changes from round to round: old new, new old, old new.

    From the second round on, the side that begins has just been measured, and its memory is in the caches. With an odd
    number of rounds, this favours both sides equally often.
    """
    opened = {side.name: side.sample(1, case=asdict(row.case)) for side in sides}
    refused = [f"{name}: {sample['refused']}" for name, sample in opened.items() if "refused" in sample]
    if refused:
        row.skipped = "; ".join(refused)
        return
    # The smaller one: what disturbs a call can only make it longer.
    seconds = min(sample["wall"] for sample in opened.values())
    calls = min(MOST_CALLS, max(1, round(SAMPLE[row.case.part] / seconds)))
    for number in rounds:
        for side in sides if number % 2 == 0 else reversed(sides):
            row.add(side.name, side.sample(calls))
