"""Symbols of a few bits in bytes: the layout of `reference.packing`."""

import triton
import triton.language as tl


@triton.jit
def _store_plane(
    symbols, to, length, j, own, BITS: tl.constexpr, PARTS: tl.constexpr, FULL: tl.constexpr, WIDTH: tl.constexpr
):
    offset: tl.constexpr = BITS // (2 * WIDTH) * (2 * WIDTH)
    rows: tl.constexpr = PARTS * WIDTH // 8
    fields = tl.reshape((symbols >> offset) & ((1 << WIDTH) - 1), (8 // WIDTH, rows, 512 // PARTS))
    shift = tl.arange(0, 8 // WIDTH)[:, None, None] * WIDTH
    data = tl.sum(fields << shift, axis=0).to(tl.uint8)
    row = tl.arange(0, rows)[:, None]
    at = to + offset * (length * PARTS // 8) + row * length + j
    if FULL:
        tl.store(at, data)
    else:
        tl.store(at, data, mask=own & (row >= 0))


@triton.jit
def store_planes(symbols, to, length, j, own, BITS: tl.constexpr, PARTS: tl.constexpr, FULL: tl.constexpr):
    """Symbols [PARTS, 512 / PARTS] of one block in planes of 8, 4, 2 and 1 bits, the largest first."""
    for p in tl.static_range(4):
        if BITS & (8 >> p):
            _store_plane(symbols, to, length, j, own, BITS, PARTS, FULL, 8 >> p)


@triton.jit
def _load_plane(
    data, length, e, j, own, BITS: tl.constexpr, PARTS: tl.constexpr, FULL: tl.constexpr, WIDTH: tl.constexpr
):
    offset: tl.constexpr = BITS // (2 * WIDTH) * (2 * WIDTH)
    rows: tl.constexpr = PARTS * WIDTH // 8
    at = data + offset * (length * PARTS // 8) + (e % rows) * length + j
    byte = tl.load(at) if FULL else tl.load(at, mask=own & (e >= 0), other=0)
    return ((byte.to(tl.int32) >> (e // rows * WIDTH)) & ((1 << WIDTH) - 1)) << offset


@triton.jit
def load_planes(data, length, e, j, own, BITS: tl.constexpr, PARTS: tl.constexpr, FULL: tl.constexpr):
    """The symbols of one block, int32 [PARTS, 512 / PARTS]."""
    symbols = tl.zeros((PARTS, 512 // PARTS), tl.int32)
    for p in tl.static_range(4):
        if BITS & (8 >> p):
            symbols |= _load_plane(data, length, e, j, own, BITS, PARTS, FULL, 8 >> p)
    return symbols
