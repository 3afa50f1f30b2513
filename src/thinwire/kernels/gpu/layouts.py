"""What is known of the kernels without importing Triton."""

from typing import NamedTuple

from torch import Tensor

WIDEST = 15  # bits of a symbol that the kernels pack: planes of 8, 4, 2 and 1 bits
MOST_SELECTED = 2**31 - 1  # elements to choose from: the kernels count in 32 bits
_LONGEST = 512 * 512  # elements of a bucket whose sum is folded in two levels


class Layout(NamedTuple):
    """A scheme as the kernels see it."""

    kind: str
    bits: int
    bucket: int
    l2: bool
    levels: Tensor

    def fits(self, numel: int) -> bool:
        """Whether the kernels know such buckets."""
        return min(self.bucket, numel) <= _LONGEST or (self.kind != "sign" and not self.l2)
