"""A rank's contribution to a sum: elements that are made a range at a time, just before they are needed."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from torch import Tensor

from thinwire.kernels.quantise import RangeCoder
from thinwire.kernels.shares import enter_share

Make: TypeAlias = Callable[[int, int], None]

_WORTH_SPLITTING = 1 << 16  # elements; fewer are made at once


class Sink(Protocol):
    """Receives the elements of the sum."""

    def arrived(self, low: int, high: int) -> None:
        """These elements of the sum have arrived; no element arrives twice."""

    def on_idle(self) -> bool:
        """Do a part of the work on them; False: there is none to do now."""


class Source:
    """Elements in `values`; ranges of them are valid once `range` has returned them.

    Callers ask for the same ranges again, or for ranges that do not overlap. The first bytes of a message can be sent
    before the last elements are made.
    """

    def __init__(self, values: Tensor, make: Make | None = None) -> None:
        """`make` fills a range of `values`; None: all of them are there."""
        self.values = values
        self._make = make
        self._made: set[tuple[int, int]] = set()

    @property
    def numel(self) -> int:
        return self.values.numel()

    def range(self, low: int, high: int) -> Tensor:
        """The elements from `low` to `high`."""
        if self._make is not None and (low, high) not in self._made:
            self._made.add((low, high))
            self._make(low, high)
        return self.values[low:high]

    def tensor(self) -> Tensor:
        """All elements; nothing but all of them may have been asked for before."""
        self.range(0, self.numel)
        self._make = None
        return self.values

    def prepare(self, low: int, high: int) -> bool:
        """Make a few elements of this range; False: there are more to make."""
        return True

    def split(self) -> "Source":
        """The same, made at once if it is too short to be made in ranges."""
        if self.numel < _WORTH_SPLITTING and self.undivided() is None:
            self.tensor()
        return self

    def undivided(self) -> tuple[Tensor, int] | None:
        """A tensor and a number of ranks whose quotient these elements are, if nobody needs them in `values`."""
        return None

    def before(self, encode: RangeCoder) -> RangeCoder:
        """`encode`, with each range made before it is encoded."""
        if self._make is None:
            return encode

        def make_and_encode(low: int, high: int, message: Tensor) -> None:
            self.range(low, high)
            encode(low, high, message)

        return make_and_encode


class Share(Source):
    """x / ranks, this rank's share of a mean, plus a residual.

    A share that is not finite becomes NaN throughout its range: whatever a chain selects of it, the others see it.
    """

    def __init__(self, x: Tensor, ranks: int, values: Tensor, residual: Tensor | None = None) -> None:
        super().__init__(values, self._fill)
        self.x, self.ranks, self.residual = x, ranks, residual

    def _fill(self, low: int, high: int) -> None:
        out, rest = self.values[low:high], None if self.residual is None else self.residual[low:high]
        enter_share(self.x[low:high], self.ranks, rest, out)

    def plus(self, residual: Tensor | None) -> Source:
        """The same with a residual added, in one pass where no element is made yet."""
        if self._make is None or residual is None:
            return plus(self, residual)
        return Share(self.x, self.ranks, self.values, residual)


class Undivided(Share):
    """A share that nobody needs in memory: a coder that can divide reads x itself."""

    def undivided(self) -> tuple[Tensor, int] | None:
        return (self.x, self.ranks) if self._make is not None and self.residual is None else None


def plus(source: Source, residual: Tensor | None) -> Source:
    """A source with a residual added in place."""
    return source if residual is None else Source(source.tensor().add_(residual))
