"""The backend's all-reduce, a few parts at a time: some are encoded and decoded while others are in flight."""

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor

from thinwire.core.fast import PartCoder, Parts
from thinwire.core.ops import AllReduce, Begin, Finish, Rounds
from thinwire.core.reducers.work import Reduced
from thinwire.core.spec import Size, Spec
from thinwire.kernels.shares import magnitude

Bounds: TypeAlias = tuple[int, int]
Commit: TypeAlias = Callable[[Tensor], None]  # of this rank's contribution, once the sum is known to be finite

ELEMENTS = 1 << 18  # summed by one all-reduce
WINDOW = 4  # all-reduces in flight at the same time
LAST = 2  # of them are begun when all is encoded


def cost(spec: Spec, length: int, ranks: int) -> Size:
    """Bytes a rank sends, for parts of `length` elements; each all-reduce rounds its segments up."""
    bounds = part_bounds(spec.numel // length, length)
    segments = sum(-(-(high - low) * length // ranks) for low, high in bounds)
    return Size(2 * (ranks - 1) * segments * (spec.bits // 8), spec.exact)


def exchange_bytes(coder: PartCoder, numel: int, ranks: int) -> int:
    """What it takes to ask all ranks for their largest element."""
    overlaps = coder.long or len(part_bounds(numel // coder.length, coder.length)) > 1
    return 2 * (ranks - 1) * 4 if coder.bounded and overlaps else 0


def part_bounds(count: int, length: int) -> list[Bounds]:
    """Bounds, in parts, of what one all-reduce sums: `count` parts of `length` elements; one if they are few."""
    pieces = count * length // ELEMENTS
    return list(pairwise(count * i // pieces for i in range(pieces + 1))) if pieces > 1 else [(0, count)]


class PipelinedSum:
    """One rank's part in a sum that is taken in parts.

    `certain`: before the sums are there it is known that they decode to finite elements, because the ranks told each
    other how large the largest is that they encoded.
    """

    def __init__(self, parts: Parts, coder: PartCoder, keep: bool, waits: bool = True) -> None:
        """`keep`: this rank's own contribution, as it was encoded. `waits`: whether this rank may look at elements; on
        an accelerator it would wait for them, and lose more than it wins."""
        self.parts, self.keep, self.waits = parts, keep, waits
        self.bounds = part_bounds(parts.count, parts.length)
        self.overlaps = coder.long or len(self.bounds) > 1
        self.bounded = coder.bounded and self.overlaps and waits
        self.certain = False
        self._own: list[Tensor] = []
        self._largest = 0.0

    def run(self, commit: Commit | None) -> Rounds[Reduced]:
        """The decoded sum; `commit` gets this rank's contribution while the last parts are in flight, if by then it is
        certain that the sum is finite, and what was to be kept is dealt with."""
        if not self.overlaps:  # by itself, it can share its collective with those of other tensors
            (total,) = yield AllReduce([self._encoded(self.bounds[0])])
            self.parts.decode(total, *self.bounds[0])
        else:
            yield from self._overlapped(commit)
        if self.certain and commit is not None:
            return Reduced(self.parts.result(), None, True)
        finite = True if self.certain else self.parts.finite() if self.waits else None
        return Reduced(self.parts.result(), self._contribution() if self.keep else None, finite)

    def _overlapped(self, commit: Commit | None) -> Rounds[None]:
        in_flight: deque[tuple[Bounds, Any]] = deque()
        for part in self.bounds[:-LAST]:
            if len(in_flight) == WINDOW:
                yield from self._finish(in_flight)
            in_flight.append((part, (yield Begin(AllReduce([self._encoded(part)])))))
        last = [(part, self._encoded(part)) for part in self.bounds[-LAST:]]
        question = None
        if self.bounded:
            largest = torch.tensor([self._largest], device=last[0][1].device)
            question = yield Begin(AllReduce([largest], "max"))
        for part, values in last:
            in_flight.append((part, (yield Begin(AllReduce([values])))))
        self.parts.prepare()
        while len(in_flight) > LAST:
            yield from self._finish(in_flight)
        if question is not None:
            (largest,) = yield Finish(question)
            self.certain = self.parts.certain(float(largest))
            if self.certain and commit is not None:
                commit(self._contribution())
        while in_flight:
            yield from self._finish(in_flight)

    def _contribution(self) -> Tensor:
        return self.parts.whole(self._own)

    def _encoded(self, part: Bounds) -> Tensor:
        values = self.parts.encode(*part)
        if self.keep:
            self._own.append(values.clone())  # a backend sums in place
        if self.bounded:
            self._largest = max(self._largest, magnitude(values))
        return values

    def _finish(self, in_flight: deque[tuple[Bounds, Any]]) -> Rounds[None]:
        part, ticket = in_flight.popleft()
        (total,) = yield Finish(ticket)
        self.parts.decode(total, *part)
