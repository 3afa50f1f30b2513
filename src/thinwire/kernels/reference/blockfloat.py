"""Block floats of the OCP Microscaling standard, in torch for any device.

A block of 32 numbers shares the power of two 2^(e - 127), e in one byte: floor(log2(largest magnitude)) less the
exponent of the largest short float. Each number divided by it is rounded to the nearest short float, ties to even, and
larger ones become the largest. A block with an infinity or a NaN has e = 255, one of zeros e = 0.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

LENGTH = 32
NOT_FINITE = 255


class Format(NamedTuple):
    """A short float: its bits, those of its mantissa, exponents of the least and largest normal number, last code."""

    bits: int
    mantissa: int
    least: int
    most: int
    top: int


FORMATS = {
    4: Format(4, 1, 0, 2, 7),  # E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6
    6: Format(6, 3, 0, 2, 31),  # E2M3: up to 7.5
    8: Format(8, 3, -6, 8, 126),  # E4M3: up to 448; code 127 is NaN
}


@lru_cache(maxsize=8)
def values_of(bits: int) -> Tensor:  # [2^bits] float32
    """The number of each code, the sign in the top bit."""
    form = FORMATS[bits]
    half = 2 ** (bits - 1)
    found = []
    for code in range(half):
        exponent, fraction = code >> form.mantissa, code & (2**form.mantissa - 1)
        lead = 2**form.mantissa if exponent else 0
        found.append((lead + fraction) * 2.0 ** (form.least + max(exponent, 1) - 1 - form.mantissa))
    found[form.top + 1 :] = [float("nan")] * (half - form.top - 1)
    return torch.tensor([*found, *(-value for value in found)], dtype=torch.float32)


def encode(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:  # [n] -> exponents [ceil(n/32)], symbols [n], both uint8
    form = FORMATS[bits]
    blocks = torch.nn.functional.pad(x, (0, -x.numel() % LENGTH)).view(-1, LENGTH)
    largest = blocks.abs().amax(1)
    finite = torch.isfinite(largest)
    used = finite & (largest > 0)
    shared = (torch.frexp(torch.where(used, largest, 1.0)).exponent - 1 - form.most).clamp_min(-127)
    scale = torch.ldexp(torch.ones_like(shared, dtype=torch.float64), -shared)
    a = torch.where(used.view(-1, 1), blocks, 0.0).double().abs() * scale.view(-1, 1)
    small = (a * 2.0 ** (form.mantissa - form.least)).round().to(torch.int32)
    keys, drop = a.float().view(torch.int32), 23 - form.mantissa
    rounded = (keys + ((1 << (drop - 1)) - 1) + (keys >> drop & 1)) >> drop
    codes = torch.where(a < 2.0**form.least, small, rounded - ((form.least + 126) << form.mantissa))
    signs = torch.signbit(blocks) & used.view(-1, 1)
    symbols = codes.clamp_max(form.top) | signs.to(torch.int32) << (bits - 1)
    exponents = torch.where(finite, torch.where(used, shared + 127, 0), NOT_FINITE)
    return exponents.to(torch.uint8), symbols.to(torch.uint8).view(-1)[: x.numel()]


def decode(symbols: Tensor, exponents: Tensor, bits: int) -> Tensor:  # -> [n] float32
    table = values_of(bits).to(symbols.device)
    shared = exponents.to(torch.int32) - 127
    scale = torch.ldexp(torch.ones_like(shared, dtype=torch.float64), shared)
    scale = torch.where(exponents == NOT_FINITE, torch.nan, scale).repeat_interleave(LENGTH)
    return (table[symbols.to(torch.int64)].double() * scale[: symbols.numel()]).float()
