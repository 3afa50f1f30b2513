"""Sums of additive chains by the backend's all-reduce, a few parts at a time: some are encoded and decoded while others
are under way."""

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor

from thinwire.core.ops import AllReduce, Begin, Finish, Rounds
from thinwire.core.stage import Parts
from thinwire.kernels.shares import magnitude

Bounds: TypeAlias = tuple[int, int]
Book: TypeAlias = Callable[[Tensor], None]

TOGETHER = 1 << 18  # numbers that are summed by one all-reduce
WINDOW = 4  # all-reduces under way at the same time
LAST = 2  # of them are begun when all is encoded


def part_bounds(count: int, grain: int) -> list[Bounds]:
    """Where `count` parts of `grain` numbers are cut; in one piece if they are few."""
    pieces = count * grain // TOGETHER
    return list(pairwise(count * i // pieces for i in range(pieces + 1))) if pieces > 1 else [(0, count)]


def question_bytes(count: int, grain: int, ranks: int) -> int:
    """What it takes to ask all ranks for their largest number."""
    return 2 * (ranks - 1) * 4 if len(part_bounds(count, grain)) > 1 else 0


class InParts:
    """One rank's part in a sum that is taken in parts.

    `certain`: before the sums are there it is known that they decode to finite numbers, because the ranks told each
    other how large the largest is that they encoded.
    """

    def __init__(self, parts: Parts, keep: bool, asks: bool) -> None:
        """`keep`: this rank's own contribution, as it was encoded; `asks`: how large others' numbers are."""
        self.parts, self.keep = parts, keep
        self.bounds = part_bounds(parts.count, parts.grain)
        self.asks = asks and len(self.bounds) > 1
        self.certain = False
        self._own: list[Tensor] = []
        self._largest = 0.0

    def own(self) -> Tensor:
        return self.parts.whole(self._own)

    def summed(self, book: Book | None = None) -> Rounds[Tensor]:
        """The decoded sum; `book` gets this rank's own contribution while the last parts travel, if by then it is
        certain that the sum is finite."""
        if len(self.bounds) == 1:  # by itself, it can share its collective with those of other tensors
            (total,) = yield AllReduce([self._encoded(self.bounds[0])])
            self.parts.decode(total, *self.bounds[0])
            return self.parts.result()
        flying: deque[tuple[Bounds, Any]] = deque()
        for part in self.bounds[:-LAST]:
            if len(flying) == WINDOW:
                yield from self._land(flying)
            flying.append((part, (yield Begin(AllReduce([self._encoded(part)])))))
        last = [(part, self._encoded(part)) for part in self.bounds[-LAST:]]
        largest = torch.tensor([self._largest], device=last[0][1].device)
        question = (yield Begin(AllReduce([largest], "max"))) if self.asks else None
        for part, values in last:
            flying.append((part, (yield Begin(AllReduce([values])))))
        while len(flying) > LAST:
            yield from self._land(flying)
        if question is not None:
            (largest,) = yield Finish(question)
            self.certain = self.parts.certain(float(largest))
            if self.certain and book is not None:
                book(self.own())
        while flying:
            yield from self._land(flying)
        return self.parts.result()

    def _encoded(self, part: Bounds) -> Tensor:
        values = self.parts.encode(*part)
        if self.keep:
            self._own.append(values.clone())  # a backend sums in place
        if self.asks:
            self._largest = max(self._largest, magnitude(values))
        return values

    def _land(self, flying: deque[tuple[Bounds, Any]]) -> Rounds[None]:
        part, ticket = flying.popleft()
        (total,) = yield Finish(ticket)
        self.parts.decode(total, *part)
