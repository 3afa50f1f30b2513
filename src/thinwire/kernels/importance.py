"""How much a number matters for its weight, compiled where possible; `reference.importance` says what is computed."""

import math

import torch
from torch import Tensor

from thinwire.errors import CodecError
from thinwire.kernels import sparse
from thinwire.kernels.gpu import gpu_for
from thinwire.kernels.native import native_for
from thinwire.kernels.reference import importance as reference
from thinwire.kernels.reference.bitstream import MOST_ELEMENTS
from thinwire.kernels.reference.sparse import expect_count


def _check(v: Tensor, weights: Tensor) -> None:
    if any(t.dtype != torch.float32 or t.dim() != 1 for t in (v, weights)) or v.shape != weights.shape:
        raise CodecError(
            "importance compares float32 vectors of one length,"
            f" not {tuple(v.shape)} of {v.dtype} with {tuple(weights.shape)} of {weights.dtype}; flatten and convert"
        )


def _floor(weights: Tensor, guard: float) -> float:
    """What is added to every weight; 0 where there is nothing to compare with."""
    native = native_for(weights)
    assert native is not None
    floor = guard * (math.sqrt(native.sum_of_squares(weights)) / math.sqrt(max(weights.numel(), 1)))
    return float(torch.tensor(floor, dtype=torch.float32))


def importance(v: Tensor, weights: Tensor, guard: float, ranks: int = 1) -> Tensor:
    """|v| / (|w| + guard * rms(w)) * ranks; |v| * ranks where all weights are zero."""
    _check(v, weights)
    v, weights = v.detach(), weights.detach()
    if (gpu := gpu_for("importance", v, weights)) is not None:
        return gpu.importance.importance(v, weights, guard, ranks)  # type: ignore[no-any-return]
    native = native_for(v, weights)
    if native is None:
        return reference.importance(v, weights, guard, ranks)
    floor = _floor(weights, guard)
    if not floor > 0:
        return v.abs() * ranks
    scores = torch.empty_like(v)
    native.importances(v, weights, floor, ranks, scores)
    return scores


def most_important(v: Tensor, weights: Tensor, guard: float, ranks: int, k: int) -> Tensor:  # [numel] -> [k]
    """Ascending positions of the k largest importances; among equals the first ones.

    Few of many are found while the importances are computed, block by block, without keeping them.
    """
    _check(v, weights)
    expect_count(k, v.numel())
    v, weights = v.detach(), weights.detach()
    native = native_for(v, weights)
    if native is not None and v.numel() <= MOST_ELEMENTS and (floor := _floor(weights, guard)) > 0:
        positions = torch.empty(k, dtype=torch.int64)
        if native.most_important(v, weights, floor, ranks, positions):
            return positions
    return sparse.largest(importance(v, weights, guard, ranks), k)
