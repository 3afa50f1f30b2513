"""Shared-scale integers in lanes, compiled where possible; `reference.integers` says what they compute."""

import torch
from torch import Tensor

from thinwire.kernels.gpu import gpu_for
from thinwire.kernels.native import native_for, threads_for
from thinwire.kernels.reference import integers as reference
from thinwire.kernels.reference.integers import lane_count
from thinwire.kernels.shares import check_ranks, divided

__all__ = ["integers_decode", "integers_encode", "lane_count"]


def integers_encode(
    x: Tensor, ranks: int, bits: int, levels: int, lift: float, factor: float, key: int, base: int, lanes: Tensor
) -> None:
    """x / ranks rounded at random to whole multiples of 1 / (lift * factor), into int32 lanes."""
    check_ranks(ranks)
    good = x.dtype == torch.float32 and lanes.dtype == torch.int32
    if good and (gpu := gpu_for("integers", x, lanes)) is not None:
        gpu.symbols.integers_encode(x, ranks, bits, levels, lift, factor, key, base, lanes)
        return
    native = native_for(x, lanes) if good else None
    if native is None:
        share = x if ranks == 1 else divided(x, ranks)
        lanes.copy_(reference.integers_encode(share, bits, levels, lift, factor, key, base))
        return
    given = (ranks, bits, levels, lift, factor, key & (2**64 - 1), base & (2**32 - 1))
    native.integers_encode(x.data_ptr(), x.numel(), *given, lanes.data_ptr(), lanes.numel(), threads_for(x.numel()))


def integers_decode(lanes: Tensor, bits: int, unit: float, scale: float, out: Tensor, add: bool) -> None:
    """The numbers of lanes (or of sums of lanes), written to `out` or added to it."""
    good = lanes.dtype == torch.int32 and out.dtype == torch.float32
    if good and (gpu := gpu_for("integers", lanes, out)) is not None:
        gpu.symbols.integers_decode(lanes, bits, unit, scale, out, add)
        return
    native = native_for(lanes, out) if good else None
    if native is None:
        reference.integers_decode(lanes, bits, unit, scale, out, add)
    else:
        source, target = (lanes.data_ptr(), lanes.numel()), (out.data_ptr(), out.numel())
        native.integers_decode(*source, bits, unit, scale, add, *target, threads_for(out.numel()))
