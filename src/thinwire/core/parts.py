"""Sums of additive chains by the backend's all-reduce, a few parts at a time: some are encoded and decoded while others
are under way."""

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor

from thinwire.core.ops import AllReduce, Begin, Finish, Rounds
from thinwire.core.stage import Encoded, Scene, Stage
from thinwire.kernels.shares import magnitude

Bounds: TypeAlias = tuple[int, int]
Book: TypeAlias = Callable[[Tensor], None]

TOGETHER = 1 << 18  # numbers that are summed by one all-reduce
WINDOW = 4  # all-reduces under way at the same time
LAST = 2  # of them are begun when all is encoded


class Parts:
    """A tensor that an additive stage encodes, and whose sum it decodes, a few parts at a time.

    There are `count` parts, each encoded as `grain` numbers; bounds are given in parts.
    """

    grain: int
    count: int
    long: bool = False  # few numbers are summed, and many are made of them

    def land(self, out: Tensor) -> None:
        """Flat memory where the result is wanted, if it can be decoded there."""

    def prepare(self) -> None:
        """What can be done for the result while the first sums are under way; some may have come already."""

    def encode(self, low: int, high: int) -> Tensor:
        """This rank's encoded parts from `low` to `high`, flat."""
        raise NotImplementedError

    def decode(self, values: Tensor, low: int, high: int) -> None:
        """Take the sum over all ranks of these parts."""
        raise NotImplementedError

    def result(self) -> Tensor:
        """The decoded sum, once all its parts are there."""
        raise NotImplementedError

    def finite(self) -> bool | None:
        """Whether the result is finite, if that is known without looking at it."""
        return None

    def certain(self, largest: float) -> bool:
        """Whether sums decode to finite numbers for sure, if no rank encoded a larger number than this."""
        return False

    def whole(self, encoded: list[Tensor]) -> Tensor:
        """All encoded parts as the stage would have encoded them at once."""
        return torch.cat(encoded)


class Pieces(Parts):
    """Parts of a stage that puts `unit` numbers into one, whatever lies around them."""

    def __init__(self, stage: Stage, x: Tensor, scene: Scene, unit: int) -> None:
        self.grain, self.count = 1, stage.out(scene.spec).numel
        self.stage, self.x, self.scene, self.unit = stage, x, scene, unit
        self.total = torch.empty(0)

    def land(self, out: Tensor) -> None:
        self.total = out

    def _cut(self, low: int, high: int) -> tuple[slice, Scene]:
        cut = slice(low * self.unit, min(high * self.unit, self.x.numel()))
        spec = self.scene.spec.numbers(cut.stop - cut.start)
        return cut, self.scene.moved(spec=spec, base=self.scene.base + cut.start)

    def encode(self, low: int, high: int) -> Tensor:
        cut, scene = self._cut(low, high)
        return self.stage.encode(self.x[cut], scene).values

    def decode(self, values: Tensor, low: int, high: int) -> None:
        cut, scene = self._cut(low, high)
        self.stage.decode(Encoded(values), scene.moved(contributions=scene.ranks), self.total[cut])

    def result(self) -> Tensor:
        return self.total

    def finite(self) -> bool | None:
        return self.stage.tells_finite(self.total, self.scene)

    def whole(self, encoded: list[Tensor]) -> Tensor:
        """Draws go by position, so that it is the same numbers, if in another arrangement."""
        return self.stage.encode(self.x, self.scene).values


def part_bounds(count: int, grain: int) -> list[Bounds]:
    """Where `count` parts of `grain` numbers are cut; in one piece if they are few."""
    pieces = count * grain // TOGETHER
    return list(pairwise(count * i // pieces for i in range(pieces + 1))) if pieces > 1 else [(0, count)]


def question_bytes(count: int, grain: int, ranks: int, long: bool = False) -> int:
    """What it takes to ask all ranks for their largest number."""
    return 2 * (ranks - 1) * 4 if long or len(part_bounds(count, grain)) > 1 else 0


class InParts:
    """One rank's part in a sum that is taken in parts.

    `certain`: before the sums are there it is known that they decode to finite numbers, because the ranks told each
    other how large the largest is that they encoded.
    """

    def __init__(self, parts: Parts, keep: bool, asks: bool) -> None:
        """`keep`: this rank's own contribution, as it was encoded; `asks`: how large others' numbers are."""
        self.parts, self.keep = parts, keep
        self.bounds = part_bounds(parts.count, parts.grain)
        self.overlaps = parts.long or len(self.bounds) > 1
        self.asks = asks and self.overlaps
        self.certain = False
        self._own: list[Tensor] = []
        self._largest = 0.0

    def own(self) -> Tensor:
        return self.parts.whole(self._own)

    def summed(self, book: Book | None = None) -> Rounds[Tensor]:
        """The decoded sum; `book` gets this rank's own contribution while the last parts travel, if by then it is
        certain that the sum is finite."""
        if not self.overlaps:  # by itself, it can share its collective with those of other tensors
            (total,) = yield AllReduce([self._encoded(self.bounds[0])])
            self.parts.decode(total, *self.bounds[0])
            return self.parts.result()
        flying: deque[tuple[Bounds, Any]] = deque()
        for part in self.bounds[:-LAST]:
            if len(flying) == WINDOW:
                yield from self._land(flying)
            flying.append((part, (yield Begin(AllReduce([self._encoded(part)])))))
        last = [(part, self._encoded(part)) for part in self.bounds[-LAST:]]
        question = None
        if self.asks:
            largest = torch.tensor([self._largest], device=last[0][1].device)
            question = yield Begin(AllReduce([largest], "max"))
        for part, values in last:
            flying.append((part, (yield Begin(AllReduce([values])))))
        self.parts.prepare()
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
