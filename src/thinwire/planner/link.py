"""The link of a process group, measured with the operations that training uses."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from thinwire.core.ops import AllReduce, AllToAll, PipelinedExchange, SendRecv, Traffic
from thinwire.core.reducers.sharded import hops_of
from thinwire.errors import CodecError
from thinwire.planner.profile import Link, LinkPoint
from thinwire.worlds.distributed import Distributed

SECONDS = 3.0  # that a measurement may take at 100 Mbit/s
_MOST_BYTES = 1 << 26  # that a rank sends in one operation
_FIRST = {"gather": 1 << 10, "reduce": 1 << 10, "exchange": 1 << 16}  # bytes that a rank sends, about
_GROWTH = {"gather": 16, "reduce": 16, "exchange": 8}
_LAST = {"gather": 1 << 18, "reduce": _MOST_BYTES, "exchange": _MOST_BYTES}
_ENOUGH = 0.25  # seconds: what takes as long says the bandwidth exactly enough
_TURNS = 3
_SHARE = {"gather": 0.1, "reduce": 0.4, "exchange": 0.4}  # of the time
_PROBE = 1 << 20  # bytes that each rank receives from one peer


class Filler:
    """Messages of a fixed size whose content does not matter: the exchange without a codec."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.size: int | None = size
        self.expected_size = self.longest = size
        self.traffic = Traffic()
        self._message = torch.zeros(size, dtype=torch.uint8, device=device)

    def prepare(self, hop: int) -> bool:
        return True

    def next_message(self, hop: int) -> Tensor:
        return self._message

    def on_sent(self, hop: int) -> None:
        pass

    def on_message(self, hop: int, message: Tensor) -> None:
        pass


def measure_link(world: Distributed, seconds: float = SECONDS, rates: bool = True) -> Link:
    """The link of a process group; all of its ranks call it, at the same time, with nothing else to do.

    Args:
        world: The world of the group.
        seconds: What it may take, about; slow links are measured with fewer bytes.
        rates: Measure also at what rate each rank receives.

    Returns:
        Figures of the slowest rank, equal on all ranks.
    """
    if not seconds > 0:
        raise CodecError(f"a link is measured in a time above 0 seconds; got {seconds}.")
    if world.ranks < 2:
        return Link(1, {kind: (LinkPoint(0, 0.0),) for kind in _FIRST})
    points = {kind: _steady(list(_points(world, kind, seconds * _SHARE[kind]))) for kind in _FIRST}
    hop = points["reduce"][0].seconds / (2 * (world.ranks - 1))
    received = _received_rates(world, seconds * _SHARE["exchange"], points) if rates else ()
    return Link(world.ranks, points, received, hop)


def _points(world: Distributed, kind: str, budget: float) -> Iterator[LinkPoint]:
    """Longer and longer operations, the last one as long as there is time for.

    The last one must be long: shapers and switches let the first bytes of a burst pass faster than their rate.
    """
    perform, _ = _operation(world, kind, _FIRST[kind])
    perform()  # opens connections
    size, spent, turns, least = _FIRST[kind], 0.0, _TURNS, 0.0
    while True:
        perform, sent = _operation(world, kind, size)
        took, cpu = _timed(world, perform, turns)
        yield LinkPoint(sent, took, cpu)
        least = least or took
        spent += turns * (took + least) + 2 * least  # the ranks begin each turn together, and exchange their times
        fitting = int(size * (budget - spent) / max(took, 1e-6))  # bytes, if they all take as long
        size, last = min(size * _GROWTH[kind], _LAST[kind]), size
        turns = _TURNS if _TURNS * size <= fitting else 1
        size = min(size, fitting)
        if took > _ENOUGH or size < 2 * last:
            return


def _steady(points: list[LinkPoint]) -> tuple[LinkPoint, ...]:
    """No size takes longer than a larger one: what is shorter was disturbed more."""
    for at in range(len(points) - 2, -1, -1):
        after = points[at + 1]
        points[at] = replace(
            points[at],
            seconds=min(points[at].seconds, after.seconds),
            cpu_seconds=min(points[at].cpu_seconds, after.cpu_seconds),
        )
    return tuple(points)


def _operation(world: Distributed, kind: str, size: int) -> tuple[Callable[[], Any], int]:
    """A function that performs one operation, and the bytes that a rank then sends: `size`, about."""
    ranks, rank, device = world.ranks, world.rank, world.control_device
    if kind == "reduce":
        numbers = torch.zeros(max(size * ranks // (2 * (ranks - 1)) // 4, 1), device=device)
        return lambda: world.perform(AllReduce([numbers])), AllReduce([numbers]).sent(rank, ranks)
    if kind == "gather":
        message = torch.zeros(max(size // (ranks - 1), 1), dtype=torch.uint8, device=device)
        parts = [[message] if j != rank else [] for j in range(ranks)]
        return lambda: world.perform(AllToAll(parts)), message.numel() * (ranks - 1)
    each = max(size // (2 * (ranks - 1)), 1)
    items = min(8, max(1, each >> 13))
    cut = max(each // items, 1)

    def exchange() -> None:
        world.perform(PipelinedExchange(hops_of(rank, ranks), [Filler(cut, device) for _ in range(items)], device))

    return exchange, cut * items * 2 * (ranks - 1)


def _timed(world: Distributed, perform: Callable[[], Any], turns: int) -> tuple[float, float]:
    """The median of some turns, each that of the slowest rank, and the processor time of a turn."""
    took, cpu = [], []
    for _ in range(turns):
        _begin_together(world)
        began, used = time.perf_counter(), time.process_time()
        perform()
        _finish(world.control_device)
        took.append(time.perf_counter() - began)
        cpu.append(time.process_time() - used)
    device = world.control_device
    (slowest,) = world.perform(AllReduce([torch.tensor(took, dtype=torch.float64, device=device)], "max"))
    slowest = slowest.cpu().clone()
    (used_by_all,) = world.perform(AllReduce([torch.tensor(cpu, dtype=torch.float64, device=device)]))
    return float(slowest.median()), float(used_by_all.median()) / world.ranks


def _begin_together(world: Distributed) -> None:
    world.perform(AllReduce([torch.zeros(1, device=world.control_device)]))
    _finish(world.control_device)


def _finish(device: torch.device) -> None:
    """Wait for what an accelerator has queued."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


def _received_rates(world: Distributed, budget: float, points: dict[str, tuple[LinkPoint, ...]]) -> tuple[float, ...]:
    """The rate at which each rank receives.

    Every rank receives from the one before it, from the one after it and from the one opposite, and the best rate
    counts: a rank that has to wait for a peer whose link is broken has other peers, too, from 4 ranks on.
    """
    longest = points["exchange"][-1]
    size = min(_PROBE, max(int(longest.sent / max(longest.seconds, 1e-6) * budget / 8), 1 << 12))
    message, best = torch.zeros(size, dtype=torch.uint8, device=world.control_device), float("inf")
    for distance in 2 * sorted({1, world.ranks - 1, world.ranks // 2}):  # twice: one may be disturbed
        to, source = ((world.rank + way * distance) % world.ranks for way in (1, -1))
        _begin_together(world)
        began = time.perf_counter()
        world.perform(SendRecv([message], to, source, [size]))
        _finish(world.control_device)
        best = min(best, time.perf_counter() - began)
    return tuple(8e-6 * size / float(each) for each in world.gathered(best, "the measurement of links"))
