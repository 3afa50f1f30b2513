"""Work memory that lasts from one step to the next."""

import torch
from torch import Tensor

_ALIGNMENT = 64
_SHORTEST = 1 << 16  # bytes of the first block


class Buffers:
    """Hands out pieces of memory, valid until `reset`; nothing that is kept may lie in them.

    Memory that is new to a process costs a page fault for every 4 KiB, several times what the work on it costs. Pieces
    lie one behind the other in blocks that stay; each further block is as long as all before it, which costs nothing
    as long as it is not written to. On other devices than the CPU torch's own allocator keeps memory already, and knows
    which streams still use it.
    """

    def __init__(self) -> None:
        self.blocks: list[Tensor] = []
        self._at = 0  # the block that pieces are cut from
        self._used = 0  # bytes of it

    def empty(self, numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A flat tensor of unknown contents."""
        if device.type != "cpu":
            return torch.empty(numel, dtype=dtype, device=device)
        size = numel * dtype.itemsize
        while self._at < len(self.blocks) and self._used + size > self.blocks[self._at].numel():
            self._at, self._used = self._at + 1, 0
        if self._at == len(self.blocks):
            so_far = sum(block.numel() for block in self.blocks)
            self.blocks.append(torch.empty(max(size, so_far, _SHORTEST), dtype=torch.uint8))
        low = self._used
        self._used += -(-size // _ALIGNMENT) * _ALIGNMENT
        piece = self.blocks[self._at][low : low + size]
        return piece if dtype == torch.uint8 else piece.view(dtype)

    def reset(self) -> None:
        """Everything handed out so far may be handed out again."""
        self._at = self._used = 0
