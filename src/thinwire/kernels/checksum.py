"""CRC-32 of bytes in memory: zlib's value everywhere, by compiled code where the machine has instructions for it.

Ranks with and without compiled kernels compare each other's values, so that the algorithm is one that the standard
library has.
"""

import zlib
from collections.abc import Iterable

from torch import Tensor

from thinwire.kernels.native import NATIVE

_COMPILED = NATIVE if NATIVE is not None and NATIVE.has_crc32() else None


def crc32(parts: Iterable[Tensor]) -> int:
    """Of flat, contiguous uint8 tensors on the CPU, as if they were one."""
    value = 0
    for part in parts:
        if _COMPILED is None:
            value = zlib.crc32(part.numpy().data, value)
        else:
            value = _COMPILED.crc32(part.data_ptr(), part.numel(), value)
    return value
