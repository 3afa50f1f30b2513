"""Symbols packed and unpacked: the layout of `reference.packing`."""

import triton
import triton.language as tl

from thinwire.kernels.gpu.programs.planes import load_planes, store_planes


@triton.jit
def _pack_block(symbols, packed, block, m, BITS: tl.constexpr, PARTS: tl.constexpr, FULL: tl.constexpr):
    e, j = tl.arange(0, PARTS)[:, None], tl.arange(0, 512 // PARTS)[None, :]
    length = 512 // PARTS if FULL else (m + 7) // 8 * 8 // PARTS
    at = symbols + block * 512 + e * length + j
    own = j < length
    found = tl.load(at) if FULL else tl.load(at, mask=own & (e * length + j < m), other=0)
    store_planes(found.to(tl.int32), packed + block * (64 * BITS), length, j, own, BITS, PARTS, FULL)


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["packed"])
def pack(symbols, packed, n, BITS: tl.constexpr, PARTS: tl.constexpr):
    """One program a block of 512 symbols, uint8 or int32."""
    block = tl.program_id(0).to(tl.int64)
    m = tl.minimum(n - block * 512, 512).to(tl.int32)
    if m == 512:
        _pack_block(symbols, packed, block, m, BITS, PARTS, True)
    else:
        _pack_block(symbols, packed, block, m, BITS, PARTS, False)


@triton.jit
def _unpack_block(packed, symbols, block, m, BITS: tl.constexpr, PARTS: tl.constexpr, FULL: tl.constexpr):
    e, j = tl.arange(0, PARTS)[:, None], tl.arange(0, 512 // PARTS)[None, :]
    length = 512 // PARTS if FULL else (m + 7) // 8 * 8 // PARTS
    own = j < length
    found = load_planes(packed + block * (64 * BITS), length, e, j, own, BITS, PARTS, FULL)
    at = symbols + block * 512 + e * length + j
    if FULL:
        tl.store(at, found.to(symbols.dtype.element_ty))
    else:
        tl.store(at, found.to(symbols.dtype.element_ty), mask=own & (e * length + j < m))


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["packed"])
def unpack(packed, symbols, n, BITS: tl.constexpr, PARTS: tl.constexpr):
    """The inverse."""
    block = tl.program_id(0).to(tl.int64)
    m = tl.minimum(n - block * 512, 512).to(tl.int32)
    if m == 512:
        _unpack_block(packed, symbols, block, m, BITS, PARTS, True)
    else:
        _unpack_block(packed, symbols, block, m, BITS, PARTS, False)
