"""Range-based floats: N-bit codes for a float grid that covers just the range of the data.

Wang et al., "FFT-based Gradient Sparsification for the Distributed Training of Deep Neural Networks" (HPDC 2020), fit a
float format to [minimum, maximum]. Here key(x) = bits(|x|) >> (23 - m) numbers the magnitudes with m mantissa bits in
order, so that a code is a key counted from the smallest magnitude: code 0 is zero, 1 .. P are positive, P + 1 .. P + Q
negative, each side upwards from the same eps = value of key `base`. Rounding is to the nearest or stochastic; the
latter is unbiased, as the values of consecutive keys are joined by straight lines in the bit pattern.
"""

import struct
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from thinwire.errors import CodecError
from thinwire.kernels.reference.hashing import hash32, uniform24
from thinwire.kernels.reference.packing import symbol_dtype

Rounding = Literal["nearest", "stochastic"]
_INFINITY = 0x7F800000


class RangeGrid(NamedTuple):
    """The smallest key and the number of codes on each side of zero."""

    base: int
    positives: int
    negatives: int


@lru_cache(maxsize=64)
def _bits_of(value: float) -> int:
    """Bit pattern of |value| as float32, rounded up in magnitude where float32 cannot hold it."""
    try:
        single: float = struct.unpack("<f", struct.pack("<f", abs(value)))[0]
    except OverflowError:
        return _INFINITY - 1
    pattern: int = struct.unpack("<I", struct.pack("<f", single))[0]
    return pattern + (single < abs(value))


def check_format(bits: int, mantissa: int) -> None:
    """Refuse widths that leave no exponent, or that the packed format cannot carry."""
    if not 4 <= bits <= 16:
        raise CodecError(f"a range float has 4 to 16 bits, not {bits}; choose bits in that range")
    if not 0 <= mantissa <= bits - 3:
        raise CodecError(f"a range float of {bits} bits has 0 to {bits - 3} mantissa bits, not {mantissa}")


def _top_key(magnitude: float, mantissa: int) -> int:
    """Key of the first grid point at or above the magnitude; never below 2^-126, never infinite; 0 for no data."""
    if magnitude <= 0:
        return 0
    key = (_bits_of(magnitude) + (1 << (23 - mantissa)) - 1) >> (23 - mantissa)
    return min(max(key, 1 << mantissa), (0xFF << mantissa) - 1)


def rangefloat_grid(bits: int, mantissa: int, minimum: float, maximum: float) -> RangeGrid:
    """The grid of 2^bits codes whose end points are the first ones that reach minimum and maximum.

    Both sides start at the same eps and get as many codes as reach their end. A side without data gets no code. A side
    whose data lie wholly below eps gets one, so that they round to zero or eps without bias. eps is at least 2^-126
    (subnormal numbers are slow or flushed): what is more than needed of the codes stays unused.
    """
    check_format(bits, mantissa)
    if not (minimum <= maximum and abs(minimum) < float("inf") and abs(maximum) < float("inf")):
        raise CodecError(f"a range float needs a finite range, not [{minimum}, {maximum}]; check the data first")
    top_p, top_n = _top_key(maximum, mantissa), _top_key(-minimum, mantissa)
    codes = 2**bits - 1
    if not (top_p and top_n):
        base = max(top_p, top_n) + 1 - codes
    else:
        base = -((codes - 2 - top_p - top_n) // 2)
        if min(top_p, top_n) < base:
            base = max(top_p, top_n) + 2 - codes
    base = max(base, 1 << mantissa)
    positives, negatives = (max(top - base + 1, 1) if top else 0 for top in (top_p, top_n))
    return RangeGrid(base, positives, negatives)


def _per_side(negative: Tensor, grid: RangeGrid) -> Tensor:
    """The number of codes on the side of each element."""
    return torch.where(negative, grid.negatives, grid.positives)


def rangefloat_symbols(
    x: Tensor, bits: int, mantissa: int, grid: RangeGrid, rounding: Rounding, key: int, base: int
) -> tuple[Tensor, int]:
    """Codes [n], and how many elements were beyond the end points and therefore saturated.

    From eps upwards the pattern plus a half step (or a random part of a step) is cut to its key; below eps, the nearest
    of 0 and eps is taken (the middle goes up), or eps with probability |x| / eps.
    """
    shift = 23 - mantissa
    pattern = x.view(torch.int32).to(torch.int64)
    negative = pattern < 0
    magnitude = pattern & 0x7FFFFFFF
    smallest = grid.base << shift
    if rounding == "stochastic":
        drawn = hash32(key, base, x.numel(), x.device)
        above = magnitude + (drawn & ((1 << shift) - 1))
        eps = torch.tensor(smallest, dtype=torch.int32, device=x.device).view(torch.float32)
        below = uniform24(drawn) < x.abs() * (torch.ones_like(eps) / eps)
    else:
        above = magnitude + (1 << (shift - 1))
        below = magnitude >= (smallest - (1 << 23) if smallest >= 1 << 24 else smallest >> 1)
    index = torch.where(magnitude >= smallest, (above >> shift) - grid.base + 1, below.to(torch.int64))
    side = _per_side(negative, grid)
    index = torch.minimum(index, side)
    codes = torch.where(negative & (index > 0), index + grid.positives, index)
    end = torch.where(side > 0, (side + grid.base - 1) << shift, 0)
    return codes.to(symbol_dtype(bits)), int((magnitude > end).sum())


def rangefloat_dequantise(symbols: Tensor, bits: int, mantissa: int, grid: RangeGrid, out: Tensor, add: bool) -> None:
    """Values of codes, written to `out` or added to it; a code above the last one counts as the last one."""
    check_format(bits, mantissa)
    code = symbols.to(torch.int32).clamp(max=grid.positives + grid.negatives)
    negative = code > grid.positives
    index = torch.where(negative, code - grid.positives, code)
    pattern = torch.where(index > 0, (index + (grid.base - 1)) << (23 - mantissa), 0)
    value = pattern.to(torch.int32).view(torch.float32)
    value = torch.where(negative, -value, value)
    out.add_(value) if add else out.copy_(value)
