"""Launches of importances: what `kernels.importance` asks for."""

import torch
from torch import Tensor

from thinwire.kernels.gpu.launch import launch
from thinwire.kernels.gpu.programs import importance as kernels
from thinwire.kernels.reference.importance import floor_of
from thinwire.kernels.reference.packing import BLOCK


def importance(v: Tensor, weights: Tensor, guard: float, ranks: int) -> Tensor:
    """|v| / (|w| + guard * rms(w)) * ranks; |v| * ranks where all weights are zero."""
    scores = torch.empty_like(v)
    floor = floor_of(_sum_of_squares(weights), v.numel(), guard)
    launch(kernels.scores, -(-v.numel() // BLOCK), v, weights, floor, scores, v.numel(), ranks)
    return scores


def _sum_of_squares(x: Tensor) -> Tensor:  # float64 [1]
    """In the order of `tree_sum`."""
    if not x.numel():
        return torch.zeros(1, dtype=torch.float64, device=x.device)
    squared = True
    while squared or x.numel() > 1:
        sums = torch.empty(-(-x.numel() // BLOCK), dtype=torch.float64, device=x.device)
        launch(kernels.fold_runs, sums.numel(), x, sums, x.numel(), SQUARED=squared)
        x, squared = sums, False
    return x
