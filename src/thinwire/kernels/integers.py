"""Shared-scale integers in lanes, compiled where possible; `reference.integers` says what they compute."""

import torch
from torch import Tensor

from thinwire.kernels.native import native_for
from thinwire.kernels.reference import integers as reference
from thinwire.kernels.reference.integers import lane_count

__all__ = ["integers_decode", "integers_encode", "lane_count"]


def integers_encode(x: Tensor, bits: int, levels: int, lift: float, factor: float, key: int, base: int) -> Tensor:
    """Numbers rounded at random to whole multiples of 1 / (lift * factor), as int32 lanes."""
    native = native_for(x)
    if native is None:
        return reference.integers_encode(x, bits, levels, lift, factor, key, base)
    lanes = torch.empty(lane_count(x.numel(), bits), dtype=torch.int32)
    native.integers_encode(x, bits, levels, lift, factor, key, base & 0xFFFFFFFF, lanes)
    return lanes


def integers_decode(lanes: Tensor, bits: int, unit: float, scale: float, out: Tensor, add: bool) -> None:
    """The numbers of lanes (or of sums of lanes), written to `out` or added to it."""
    native = native_for(lanes, out)
    if native is None:
        reference.integers_decode(lanes, bits, unit, scale, out, add)
    else:
        native.integers_decode(lanes.clone(), bits, unit, scale, add, out)
