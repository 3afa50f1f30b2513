"""What every reduction is given, and what it returns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from torch import Tensor

from thinwire.core.buffers import Buffers
from thinwire.core.message import Link
from thinwire.core.source import Sink, Source

Keep: TypeAlias = Literal["nothing", "delivered", "remainder"]

SECOND_ENCODING = 64  # added to a stage's stream for each further encoding, so that draws stay independent


@dataclass(frozen=True)
class Work:
    """One rank's part in a sum over the ranks.

    `keep`: what must be known of this rank's own contribution, as the others decode it.

    nothing    the memory of the source may be overwritten
    delivered  the contribution itself
    remainder  the source less the contribution, in the source's own memory

    By linearity the contributions of all ranks add up to the sum, so that the remainders hold exactly what is missing.
    """

    links: Sequence[Link]  # the wire coders with their contexts; none: the backend sums
    source: Source
    total: Tensor  # memory for the sum
    keep: Keep
    rank: int
    ranks: int
    buffers: Buffers
    sink: Sink | None = None  # None: nobody waits for parts of the sum
    bundle: float = 1.0  # how many times as much as this travels in the same rounds

    def empty(self, numel: int) -> Tensor:
        return self.buffers.empty(numel, self.total.dtype, self.total.device)


class Reduced(NamedTuple):
    """The sum; what was to be kept, unless it is dealt with; and whether the sum is finite, if that is known."""

    total: Tensor
    kept: Tensor | None
    finite: bool | None = None
