"""Elements of a transform that works block by block: made just before they are sent, decoded once they have arrived."""

from collections import deque
from collections.abc import Iterator

from torch import Tensor

from thinwire.core.fast import BlockCoder
from thinwire.core.source import Source
from thinwire.kernels.shares import all_finite


class Blockwise(Source):
    """The transform of x plus a residual in its own space, as a source; and the way back for the sum, as a sink.

    Blocks are the same ones on all ranks, whatever is asked for first, so that all ranks decode the same bits.
    """

    def __init__(self, blocks: BlockCoder, x: Source, residual: Tensor | None, values: Tensor) -> None:
        """`values`: memory for the transformed elements."""
        super().__init__(values, self._make_range)
        self.blocks, self.x, self.residual = blocks, x, residual
        count = -(-values.numel() // blocks.length)
        self._done = [False] * count
        self._awaited = [min(blocks.length, values.numel() - i * blocks.length) for i in range(count)]
        self._complete: deque[tuple[int, int]] = deque()  # blocks of the sum that are there, and not decoded
        self._sum = self._mean = values
        self.finite = True

    def set_output(self, total: Tensor, mean: Tensor) -> None:
        """Memory for the sum, and for the decoded sum."""
        self._sum, self._mean = total, mean

    def range(self, low: int, high: int) -> Tensor:
        self._make_range(low, high)  # a block may belong to several ranges
        return self.values[low:high]

    def _make_range(self, low: int, high: int) -> None:
        while not self.prepare(low, high):
            pass

    def prepare(self, low: int, high: int) -> bool:
        for i, bounds in self._blocks(low, high):
            if not self._done[i]:
                self._done[i] = True
                self._encode(*bounds)
                return False
        return True

    def _encode(self, low: int, high: int) -> None:
        residual = None if self.residual is None else self.residual[low:high].to(self.values.dtype)
        undivided = self.x.undivided()
        x, ranks = (self.x.range(low, high), 1) if undivided is None else (undivided[0][low:high], undivided[1])
        self.blocks.encode(x, ranks, residual, self.values[low:high])

    def arrived(self, low: int, high: int) -> None:
        for i, (begin, end) in self._blocks(low, high):
            self._awaited[i] -= min(end, high) - max(begin, low)
            if not self._awaited[i]:
                self._complete.append((begin, end))

    def on_idle(self) -> bool:
        if not self._complete:
            return False
        low, high = self._complete.popleft()
        here = self._mean[low:high]
        self.blocks.decode(self._sum[low:high], here)
        self.finite = self.finite and all_finite(here)
        return True

    def _blocks(self, low: int, high: int) -> Iterator[tuple[int, tuple[int, int]]]:
        length = self.blocks.length
        for i in range(low // length, -(-high // length)) if low < high else ():
            yield i, (i * length, min((i + 1) * length, self.numel))
