"""Fast paths: objects that a stage may offer beside `encode` and `decode`. Without one a chain is right, and slower.

A stage offers one by `fast(spec)`, without data, so that `core.route` can choose before data moves. Each kind of stage
has its own: a wire coder messages of fixed size by ranges, a transform blocks or parts.
"""

import torch
from torch import Tensor

from thinwire.core.context import Context
from thinwire.core.source import Source
from thinwire.kernels.modes import Mode
from thinwire.kernels.quantise import RangeCoder


class FastPath:
    """What any fast path may know. `finite` is asked for tensors on the CPU, `select` for those elsewhere."""

    def finite(self, data: Tensor, ctx: Context) -> bool | None:
        """Whether all that `data` (a message, or a sum of encodings) decodes to is finite; None: decode it and look."""
        return None

    def selects(self, ctx: Context) -> bool:
        """Whether `select` can take the place of the stage's `observe` in this step."""
        return False

    def select(self, finite: Tensor, mean: Tensor, ctx: Context) -> None:
        """Observe the mean where only the device knows whether it is finite: if not, tensors of the state stay."""


class MessageCoder(FastPath):
    """A wire coder whose messages have a fixed size: side bytes and payload, written and read in one go.

    A writer or reader is prepared for all elements of a segment and then called with ranges of them: between the
    messages of a step the caches hold gradients, and whatever Python does there takes several times as long. The
    ctx's base is the position of the first element. A message of the wrong length is a WireError of the reader.
    """

    split: int = 0  # a message may be split at multiples of so many elements without other values or sizes; 0: not

    def writer(self, x: Source, ctx: Context) -> RangeCoder:
        """What will encode ranges of x into messages of the exact size."""
        raise NotImplementedError

    def reader(self, ctx: Context, out: Tensor, mode: Mode) -> RangeCoder:
        """What will decode messages into ranges of `out`."""
        raise NotImplementedError


class BlockCoder(FastPath):
    """A transform that maps `length` elements to as many, whatever lies around them; the last block may be shorter."""

    length: int

    def encode(self, x: Tensor, ranks: int, residual: Tensor | None, out: Tensor) -> None:
        """The transform of a block x / ranks, plus a residual in the transform's own space."""
        raise NotImplementedError

    def decode(self, y: Tensor, out: Tensor) -> None:
        raise NotImplementedError


class PartCoder(FastPath):
    """A transform whose output is summed in parts of `length` elements, so that work and transfer overlap."""

    length: int
    bounded: bool = False  # ranks exchange their largest element, to know before the sum whether it will be finite
    long: bool = False  # few elements are summed, and many are made of them: worth overlapping even in one part

    def parts(self, x: Source, ctx: Context) -> "Parts | None":
        """The parts of x with the shared context of this step; None: this step has none."""
        raise NotImplementedError


class Parts:
    """A tensor that a transform encodes, and whose sum it decodes, a few parts at a time.

    There are `count` parts of `length` elements each; bounds are given in parts.
    """

    length: int
    count: int

    def set_output(self, out: Tensor) -> None:
        """Flat memory where the result is needed, if it can be decoded there."""

    def prepare(self) -> None:
        """What can be done for the result while the first sums are in flight; some may have arrived already."""

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
        """Whether sums decode to finite elements for sure, if no rank encoded a larger element than this."""
        return False

    def whole(self, encoded: list[Tensor]) -> Tensor:
        """All encoded parts as the stage would have encoded them at once."""
        return torch.cat(encoded)
