"""Work memory that lasts from one step to the next."""

from collections import defaultdict

import torch
from torch import Tensor

_ALIGNMENT = 64
_SHORTEST = 1 << 16  # bytes of the first block
_WORTH_KEEPING = 1 << 20  # bytes; fewer are copied in no time
_MOST_ALONE = 1 << 26  # bytes of pieces that are not cut from blocks, and not kept


class Buffers:
    """Hands out pieces of memory, valid until `reset`; nothing that is kept may lie in them, unless it is `kept`.

    Memory that is new to a process costs a page fault for every 4 KiB, several times what the work on it costs. Pieces
    lie one behind the other in blocks that stay; each further block is as long as all before it, which costs nothing
    as long as it is not written to. On other devices than the CPU torch's own allocator keeps memory already, and knows
    which streams still use it.
    """

    def __init__(self) -> None:
        self.blocks: list[Tensor] = []
        self._at = 0  # the block that pieces are cut from
        self._used = 0  # bytes of it
        self._alone: dict[tuple[int, torch.dtype], list[Tensor]] = defaultdict(list)  # that nobody has
        self._lent: list[Tensor] = []
        self._apart = 0  # bytes of both

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

    def alone(self, numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The same, but not a piece of a block if it is long, so that it can be `kept`; within limits, because blocks
        serve pieces of all lengths, and this one only others of its own."""
        size = numel * dtype.itemsize
        if size < _WORTH_KEEPING or device.type != "cpu":
            return self.empty(numel, dtype, device)
        found = self._alone[numel, dtype]
        if not found and self._apart + size > _MOST_ALONE:
            return self.empty(numel, dtype, device)
        if not found:
            found.append(torch.empty(numel, dtype=dtype))
            self._apart += size
        self._lent.append(found.pop())
        return self._lent[-1]

    def kept(self, piece: Tensor, instead: Tensor | None) -> bool:
        """Leave a piece to whoever asks, and take the memory that it replaces; False: it must be copied."""
        if not any(piece is lent for lent in self._lent):
            return False
        self._lent = [lent for lent in self._lent if lent is not piece]
        alike = instead is not None and (instead.shape, instead.dtype) == (piece.shape, piece.dtype)
        if instead is not None and alike and instead.is_cpu and instead.is_contiguous():
            self._alone[instead.numel(), instead.dtype].append(instead)
        else:
            self._apart -= piece.nbytes
        return True

    def reset(self) -> None:
        """Everything handed out so far and not kept may be handed out again."""
        self._at = self._used = 0
        for piece in self._lent:
            self._alone[piece.numel(), piece.dtype].append(piece)
        self._lent.clear()
