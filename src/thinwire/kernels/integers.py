"""Shared-scale integers in lanes, compiled where possible; `reference.integers` says what they compute."""

import torch
from torch import Tensor

from thinwire.kernels.native import native_for, threads_for
from thinwire.kernels.reference import integers as reference
from thinwire.kernels.reference.integers import lane_count

__all__ = ["integers_decode", "integers_encode", "lane_count"]


def integers_encode(x: Tensor, bits: int, levels: int, lift: float, factor: float, key: int, base: int) -> Tensor:
    """Numbers rounded at random to whole multiples of 1 / (lift * factor), as int32 lanes."""
    native = native_for(x) if x.dtype == torch.float32 else None
    if native is None:
        return reference.integers_encode(x, bits, levels, lift, factor, key, base)
    lanes = torch.empty(lane_count(x.numel(), bits), dtype=torch.int32)
    given = (bits, levels, lift, factor, key & (2**64 - 1), base & (2**32 - 1))
    native.integers_encode(x.data_ptr(), x.numel(), *given, lanes.data_ptr(), lanes.numel(), threads_for(x.numel()))
    return lanes


def integers_decode(lanes: Tensor, bits: int, unit: float, scale: float, out: Tensor, add: bool) -> None:
    """The numbers of lanes (or of sums of lanes), written to `out` or added to it."""
    good = lanes.dtype == torch.int32 and out.dtype == torch.float32
    native = native_for(lanes, out) if good else None
    if native is None:
        reference.integers_decode(lanes, bits, unit, scale, out, add)
    else:
        source, target = (lanes.data_ptr(), lanes.numel()), (out.data_ptr(), out.numel())
        native.integers_decode(*source, bits, unit, scale, add, *target, threads_for(out.numel()))
