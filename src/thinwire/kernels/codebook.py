"""Bins over a distribution with their means as levels, compiled where possible; `reference.codebook` is the rule."""

import math

import torch
from torch import Tensor

from thinwire.errors import WireError
from thinwire.kernels.modes import Mode, put
from thinwire.kernels.native import native_for
from thinwire.kernels.reference import codebook as reference
from thinwire.kernels.reference.codebook import MOST_AT_ONCE, levels_of, place_bins, unit_of
from thinwire.kernels.shares import magnitude


def quantise(x: Tensor, bits: int, sigmas: float) -> tuple[Tensor, Tensor]:  # [n] -> [n] uint8, [2^bits] float32
    """The bin of each number and the mean of each bin; NaN throughout the levels if a number is not finite."""
    count, device = 2**bits, x.device
    codes = torch.zeros(x.numel(), dtype=torch.uint8, device=device)
    largest = magnitude(x) if x.numel() else 0.0
    if not 0.0 < largest < math.inf:
        level = 0.0 if largest == 0.0 else math.nan
        return codes, torch.full((count,), level, device=device)
    unit = unit_of(largest)
    parts = [_moments(part, unit) for part in torch.split(x, MOST_AT_ONCE)]
    total, high, low = (sum(each) for each in zip(*parts, strict=True))
    bins = place_bins(x.numel(), (total, high, low), unit, count, sigmas)
    sums, counts = torch.zeros(2, count, dtype=torch.int64, device=device).unbind(0)
    native = native_for(x, codes)
    if native is None:
        codes = reference.symbols(x, bins, sums, counts)
    else:
        native.codebook_bins(x, *bins, codes, sums, counts)
    return codes, levels_of(sums, counts, unit)


def _moments(x: Tensor, unit: float) -> tuple[int, int, int]:
    native = native_for(x)
    if native is None:
        return reference.moments(x, unit)
    found: tuple[int, int, int] = native.codebook_moments(x, unit)
    return found


def dequantise(codes: Tensor, levels: Tensor, out: Tensor, mode: Mode) -> None:
    """The level of each code, written to `out`, added to it or subtracted from it."""
    if codes.numel() and int(codes.max()) >= levels.numel():
        raise WireError(f"A symbol has no level in its codebook of {levels.numel()}; resend the message.")
    native = native_for(codes, levels, out)
    if native is None or mode == "subtract":
        put(reference.values(codes, levels), out, mode)
    else:
        native.codebook_values(codes, levels, out, mode == "add")
