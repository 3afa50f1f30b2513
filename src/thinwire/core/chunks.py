"""Numbers behind a stage that works block by block: made just before they are sent, and decoded once they have come."""

from collections import deque
from collections.abc import Iterator

from torch import Tensor

from thinwire.core.given import Given
from thinwire.core.stage import Stage
from thinwire.kernels.shares import all_finite


class Chunks:
    """What an orthonormal stage makes of `given`, with what is owed behind it, and the way back for the sum.

    Blocks are the same ones on all ranks, whatever is asked for first, so that all ranks decode the same bits.
    """

    def __init__(self, stage: Stage, block: int, given: Given, owed: Tensor | None, values: Tensor) -> None:
        """`block`: numbers that the stage encodes by themselves; `values`: memory for what it makes of them."""
        self.stage, self.block, self.given, self.owed, self.values = stage, block, given, owed, values
        count = -(-values.numel() // block)
        self._made = [False] * count
        self._awaited = [min(block, values.numel() - i * block) for i in range(count)]  # numbers of each block
        self._complete: deque[tuple[int, int]] = deque()  # blocks of the sum that are there, and not decoded
        self._sum = self._mean = values
        self.finite = True

    def land(self, total: Tensor, mean: Tensor) -> None:
        """Where the sum will come, and where it is wanted in the tensor's own space."""
        self._sum, self._mean = total, mean

    def make(self, low: int, high: int) -> None:
        while not self.prepare(low, high):
            pass

    def prepare(self, low: int, high: int) -> bool:
        for i, bounds in self._blocks(low, high):
            if not self._made[i]:
                self._made[i] = True
                self._make(*bounds)
                return False
        return True

    def _make(self, low: int, high: int) -> None:
        owed = None if self.owed is None else self.owed[low:high].to(self.values.dtype)
        x, ranks = self.given.source(low, high)
        self.stage.encode_block(x, owed, self.values[low:high], ranks)

    def come(self, low: int, high: int) -> None:
        for i, (begin, end) in self._blocks(low, high):
            self._awaited[i] -= min(end, high) - max(begin, low)
            if not self._awaited[i]:
                self._complete.append((begin, end))

    def spare(self) -> bool:
        if not self._complete:
            return False
        low, high = self._complete.popleft()
        here = self._mean[low:high]
        self.stage.decode_block(self._sum[low:high], here)
        self.finite = self.finite and all_finite(here)
        return True

    def _blocks(self, low: int, high: int) -> Iterator[tuple[int, tuple[int, int]]]:
        for i in range(low // self.block, -(-high // self.block)) if low < high else ():
            yield i, (i * self.block, min((i + 1) * self.block, self.values.numel()))
