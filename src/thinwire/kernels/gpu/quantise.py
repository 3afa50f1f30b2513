"""Launches of the bucketed quantisers: what `kernels.quantise` asks for, in one kernel, or two for unusual buckets."""

import torch
from torch import Tensor

from thinwire.kernels.gpu.launch import launch, signed32
from thinwire.kernels.gpu.layouts import Layout
from thinwire.kernels.gpu.programs import quantise as kernels
from thinwire.kernels.reference.packing import BLOCK
from thinwire.kernels.reference.quantise import bucket_count, single

_KINDS = {"uniform": 0, "exponential": 1, "levels": 2, "sign": 3}


def encode(
    layout: Layout, x: Tensor, ranks: int, key: int, base: int, scales: Tensor, codes: Tensor, packed: bool
) -> None:
    """x / ranks as scales and codes; codes are packed, or bytes with room for a multiple of 8."""
    n, width = x.numel(), layout.bits if packed else 8
    bucket, fused = layout.bucket, layout.bucket == BLOCK
    kind, l2 = _KINDS[layout.kind], layout.l2 and layout.kind != "sign"
    if not fused:
        buckets = bucket_count(n, bucket)
        launch(kernels.scale_buckets, buckets, x, scales, n, bucket, ranks, RANKS=ranks != 1, KIND=kind, L2=l2)
    words = signed32(key), signed32(key >> 32), signed32(base)
    launch(
        kernels.encode, bucket_count(n, BLOCK), x, scales, codes, _table(layout, x), n, layout.levels.numel(), *words,
        ranks, bucket, KIND=kind, BITS=layout.bits, WIDTH=width, PARTS=parts(width), RANKS=ranks != 1, L2=l2,
        FUSED=fused, EVEN=bucket % BLOCK == 0,
    )  # fmt: skip


def decode(layout: Layout, scales: Tensor, codes: Tensor, out: Tensor, packed: bool, add: bool, negated: bool) -> None:
    """The elements of such codes, written, added or subtracted."""
    n, width = out.numel(), layout.bits if packed else 8
    inverse = single(1 / (2 ** (layout.bits - 1) - 1)) if layout.kind == "uniform" else 0.0
    launch(
        kernels.decode, bucket_count(n, BLOCK), scales, codes, out, _table(layout, out), n, layout.levels.numel(),
        layout.bucket, inverse, KIND=_KINDS[layout.kind], BITS=layout.bits, WIDTH=width, PARTS=parts(width),
        EVEN=layout.bucket % BLOCK == 0, ADD=add, NEGATED=negated,
    )  # fmt: skip


def room_for(numel: int, device: torch.device) -> Tensor:
    """Memory for plain codes."""
    return torch.empty(-(-numel // 8) * 8, dtype=torch.uint8, device=device)


def parts(width: int) -> int:
    """Into how many rows a block of symbols is cut: as many as share a byte of its narrowest plane."""
    return 8 // (width & -width)


def _table(layout: Layout, instead: Tensor) -> Tensor:
    return layout.levels if layout.kind == "levels" else instead
