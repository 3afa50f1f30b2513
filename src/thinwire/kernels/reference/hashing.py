"""Random bits from positions: element `pos` under `key` always draws the same number, on any device, in any order.

A counter-based generator needs no state to save and none to hand around: two runs with the same keys round alike,
a tensor that is encoded in pieces rounds as if it were encoded whole, and a kernel may visit elements as it likes.
"""

from functools import lru_cache

import torch
from torch import Tensor

_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF


def _splitmix64(state: int) -> int:
    """One step of the splitmix64 generator: a bijection of 64-bit integers that spreads every input bit."""
    z = (state + 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


@lru_cache(maxsize=256)  # of one step, many pieces have the same
def make_key(seed: int, step: int, rank: int, stream: int) -> int:
    """A 64-bit key for one draw: of this run, at this step, on this rank, for this use.

    Integers of any size and sign are folded in, 64 bits at a time, each through its own splitmix64 step: as many words
    as their two's complement has, so that -1 and 2^64 - 1 differ.
    """
    key = 0
    for part in (seed, step, rank, stream):
        folded = word = part & _MASK64
        rest = part >> 64
        while rest != -(word >> 63):  # the sign is not told by the words so far
            word = rest & _MASK64
            folded = _splitmix64(folded) ^ word
            rest >>= 64
        key = _splitmix64(key ^ folded)
    return key


def _times(x: Tensor, factor: int) -> Tensor:
    """The low 32 bits of x * factor; a factor above 2^31 is taken as negative so that int64 never overflows."""
    signed = factor if factor < 2**31 else factor - 2**32
    return (x * signed) & _MASK32


def hash32(key: int, base: int, n: int, device: torch.device | str = "cpu") -> Tensor:
    """32 random bits for each of the positions base .. base + n - 1, as int64 values below 2^32.

    Two multiply-xorshift rounds on the position; the halves of the key enter before the first and the second round.
    """
    x = torch.arange(n, dtype=torch.int64, device=device) + (base & _MASK32) + (key & _MASK32)
    x = x & _MASK32
    x = _times(x ^ (x >> 16), 0x7FEB352D)
    x = x ^ (x >> 15) ^ ((key >> 32) & _MASK32)
    x = _times(x, 0x846CA68B)
    return x ^ (x >> 16)


def uniform24(bits: Tensor) -> Tensor:
    """Numbers in [0, 1) on a grid of 2^-24 from the upper 24 of 32 random bits; exact in float32."""
    return (bits >> 8).to(torch.float32) * 2.0**-24
