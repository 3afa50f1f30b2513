"""What a rank gives to an average: its share of the mean, with what is owed from earlier steps."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from torch import Tensor

from thinwire.kernels.shares import share_into

Make: TypeAlias = Callable[[int, int], None]

_WORTH_CUTTING = 1 << 16  # numbers; fewer are made in no time


class Flow(Protocol):
    """Numbers that a sum asks for a range at a time, and whoever waits for the sum's."""

    def make(self, low: int, high: int) -> None:
        """See to it that these numbers are there."""

    def prepare(self, low: int, high: int) -> bool:
        """Make a few of them; False: there are more to make."""

    def come(self, low: int, high: int) -> None:
        """These numbers of the sum are there; none comes twice."""

    def spare(self) -> bool:
        """Do a little of what is to be done with them; False: nothing can be done now."""


class Given:
    """Numbers that are made a range at a time, just before they are wanted, so that the first bytes leave early."""

    def __init__(self, values: Tensor, make: Make | None = None) -> None:
        """`make` fills a range of `values`; None: they are there already."""
        self.values = values
        self._make = make
        self._made: set[tuple[int, int]] = set()
        self._undivided: tuple[Tensor, int] | None = None  # if they are x / ranks, and nothing else

    @classmethod
    def share(cls, x: Tensor, ranks: int, owed: Tensor | None, values: Tensor, once: bool = False) -> "Given":
        """`values` become x / ranks + owed; `once`: whoever takes their `source` is the only one who wants them."""

        def make(low: int, high: int) -> None:
            out, rest = values[low:high], None if owed is None else owed[low:high]
            if not share_into(x[low:high], ranks, rest, out):
                out.fill_(float("nan"))  # whatever a chain selects or sends, the others must see it

        given = cls(values, make)
        if values.numel() < _WORTH_CUTTING:
            given.whole()
        elif once and owed is None and x.dtype == values.dtype:
            given._undivided = x, ranks
        return given

    def make(self, low: int, high: int) -> None:
        """See to it that these numbers are there; ranges that are asked for are the same ones, or do not overlap."""
        if self._make is not None and (low, high) not in self._made:
            self._made.add((low, high))
            self._make(low, high)

    def source(self, low: int, high: int) -> tuple[Tensor, int]:
        """What these numbers are made of, and what that is divided by: for who reads them once, and can divide."""
        if self._undivided is not None:
            x, ranks = self._undivided
            return x[low:high], ranks
        self.make(low, high)
        return self.values[low:high], 1

    def prepare(self, low: int, high: int) -> bool:
        return True  # it takes no time worth cutting

    def come(self, low: int, high: int) -> None:
        """Nobody waits for them."""

    def spare(self) -> bool:
        return False

    def whole(self) -> Tensor:
        """All of them, where nothing but all has been asked for."""
        self.make(0, self.values.numel())
        self._make = None
        return self.values
