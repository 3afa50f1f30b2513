"""Bins over a distribution with their means as levels, in torch for any device.

Numbers become fixed-point integers, 30 bits for the largest magnitude. Sums of integers do not depend on their order,
so that every device finds the same bins and the same means.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

_FRACTION = 30  # bits of the largest magnitude
MOST_AT_ONCE = 1 << 30  # numbers whose sums of squares fit into 64 bits


class Bins(NamedTuple):
    """Equal bins in fixed-point units: number x lies in floor((round(x * unit) - first) * per), cut off at the ends."""

    unit: float
    first: float
    per: float


def fixed(x: Tensor, unit: float) -> Tensor:
    """Fixed-point integers, as float64."""
    return (x.double() * unit).round()


def unit_of(largest: float) -> float:
    """The power of two that brings the largest magnitude to at most 2^30."""
    return math.ldexp(1.0, _FRACTION - math.frexp(largest)[1])


def moments(x: Tensor, unit: float) -> tuple[int, int, int]:
    """The sum, and that of the squares as its high and low halves."""
    q = fixed(x, unit).to(torch.int64)
    square = q * q
    return int(q.sum()), int((square >> 32).sum()), int((square & 0xFFFFFFFF).sum())


def place_bins(numel: int, sums: tuple[int, int, int], unit: float, count: int, sigmas: float) -> Bins:
    """`count` equal bins over `sigmas` standard deviations around the mean, in exact arithmetic up to one root."""
    total, high, low = sums
    variance = numel * ((high << 32) + low) - total * total  # times numel^2
    width = sigmas * math.sqrt(variance) / numel / count
    return Bins(unit, total / numel - width * (count / 2), 1.0 / width if width > 0 else 0.0)


def symbols(x: Tensor, bins: Bins, sums: Tensor, counts: Tensor) -> Tensor:  # [numel] -> [numel] uint8
    """The bin of each number; what lies in a bin is added to `sums`, and how many to `counts`, both int64."""
    q = fixed(x, bins.unit)
    place = ((q - bins.first) * bins.per).floor().clamp(0, counts.numel() - 1).to(torch.int64)
    sums.index_add_(0, place, q.to(torch.int64))
    counts.index_add_(0, place, torch.ones_like(place))
    return place.to(torch.uint8)


def levels_of(sums: Tensor, counts: Tensor, unit: float) -> Tensor:  # [count] int64 -> [count] float32
    """The mean of each bin; 0 for those without a number."""
    means = [total / max(count, 1) / unit for total, count in zip(sums.tolist(), counts.tolist(), strict=True)]
    return torch.tensor(means, dtype=torch.float32, device=sums.device)


def values(codes: Tensor, levels: Tensor) -> Tensor:
    return levels[codes.to(torch.int64)]
