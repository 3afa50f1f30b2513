"""How much a number matters for its weight: the specification of `thinwire.kernels.importance`."""

import math

import torch
from torch import Tensor

from thinwire.kernels.reference.quantise import tree_sum
from thinwire.kernels.reference.shares import divided
from thinwire.kernels.reference.sparse import largest


def importance(v: Tensor, weights: Tensor, guard: float, ranks: int = 1) -> Tensor:
    """|v| / (|w| + guard * rms(w)) * ranks; |v| * ranks where all weights are zero. Never NaN for finite input.

    rms(w) is summed in float64, in the order of `tree_sum`.
    """
    squares = tree_sum(weights.double().square().view(1, -1)) if weights.numel() else weights.new_zeros(1).double()
    floor = floor_of(squares, weights.numel(), guard)
    size = weights.abs() + floor
    return v.abs() / torch.where(floor > 0, size, torch.ones_like(size)) * ranks


def floor_of(squares: Tensor, numel: int, guard: float) -> Tensor:
    """What is added to every weight, of the sum of their squares in float64; float32."""
    return (guard * divided(squares.sqrt(), math.sqrt(max(numel, 1)))).float()


def most_important(v: Tensor, weights: Tensor, guard: float, ranks: int, k: int) -> Tensor:  # [numel] -> [k]
    """Ascending positions of the k largest importances; among equals the first ones."""
    return largest(importance(v, weights, guard, ranks), k)
