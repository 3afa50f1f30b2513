"""Work memory that lasts from one step to the next."""

import torch
from torch import Tensor

_ALIGNMENT = 64


class Buffers:
    """Hands out pieces of one block of memory, valid until `reset`; nothing that is kept may lie in them.

    Memory that is new to a process costs a page fault for every 4 KiB, several times what the work on it costs. What
    does not fit the block is allocated by itself, and the next block is as long as all that was asked for. On other
    devices than the CPU torch's own allocator keeps memory already, and knows which streams still use it.
    """

    def __init__(self) -> None:
        self._block = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def empty(self, numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A flat tensor of unknown contents."""
        if device.type != "cpu":
            return torch.empty(numel, dtype=dtype, device=device)
        low = self._used
        high = low + numel * dtype.itemsize
        self._used = -(-high // _ALIGNMENT) * _ALIGNMENT
        if high > self._block.numel():
            return torch.empty(numel, dtype=dtype)
        return self._block[low:high].view(dtype)

    def reset(self) -> None:
        """Everything handed out so far may be handed out again."""
        if self._used > self._block.numel():
            wanted, self._block = self._used, torch.empty(0, dtype=torch.uint8)  # give back before taking
            self._block = torch.empty(wanted, dtype=torch.uint8)
        self._used = 0
