"""Range-based floats: bit for bit what `reference.rangefloat` gives, packed or one symbol to a byte or word."""

import triton
import triton.language as tl

from thinwire.kernels.gpu.programs.planes import load_planes, store_planes
from thinwire.kernels.gpu.programs.words import hash32, uniform24


@triton.jit
def _codes(bits, drawn, first, positives, negatives, inverse, middle, MANTISSA: tl.constexpr, STOCHASTIC: tl.constexpr):
    """The code of each element, and whether it lies beyond the end of its side."""
    shift: tl.constexpr = 23 - MANTISSA
    magnitude = bits & 0x7FFFFFFF
    smallest = first << shift
    if STOCHASTIC:
        above = magnitude.to(tl.uint32) + (drawn & ((1 << shift) - 1))
        below = (uniform24(drawn) < magnitude.to(tl.float32, bitcast=True) * inverse).to(tl.int32)
    else:
        above = magnitude.to(tl.uint32) + (1 << (shift - 1))
        below = (magnitude >= middle).to(tl.int32)
    index = tl.where(magnitude >= smallest, (above >> shift).to(tl.int32) - first + 1, below)
    side = tl.where(bits < 0, negatives, positives)
    index = tl.minimum(index, side)
    end = tl.where(side > 0, (side + first - 1) << shift, 0)
    return tl.where((bits < 0) & (index > 0), index + positives, index), magnitude > end


@triton.jit
def _encode_block(
    x, packed, saturated, block, m, key_low, key_high, base, first, positives, negatives, inverse, middle,
    BITS: tl.constexpr, PARTS: tl.constexpr, MANTISSA: tl.constexpr, STOCHASTIC: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    start = block * 512
    e, j = tl.arange(0, PARTS)[:, None], tl.arange(0, 512 // PARTS)[None, :]
    length = 512 // PARTS if FULL else (m + 7) // 8 * 8 // PARTS
    at = e * length + j
    own = j < length
    there = own & (at < m)
    v = tl.load(x + start + at) if FULL else tl.load(x + start + at, mask=there, other=0.0)
    bits = v.to(tl.int32, bitcast=True)
    drawn = hash32(base + start.to(tl.uint32) + at.to(tl.uint32), key_low, key_high)
    code, beyond = _codes(bits, drawn, first, positives, negatives, inverse, middle, MANTISSA, STOCHASTIC)
    if not FULL:
        code = tl.where(there, code, 0)
    count = tl.sum(tl.sum((there & beyond).to(tl.int32), axis=1), axis=0)
    tl.store(saturated + block, count)
    store_planes(code, packed + block * (64 * BITS), length, j, own, BITS, PARTS, FULL)


@triton.jit(
    do_not_specialize=["n", "key_low", "key_high", "base", "first", "positives", "negatives", "middle"],
    do_not_specialize_on_alignment=["packed"],
)
def encode(
    x, packed, saturated, n, key_low, key_high, base, first, positives, negatives, inverse, middle,
    BITS: tl.constexpr, PARTS: tl.constexpr, MANTISSA: tl.constexpr, STOCHASTIC: tl.constexpr,
):  # fmt: skip
    """One program a block of 512: x float32 [n] -> packed codes, and how many saturated in each block."""
    block = tl.program_id(0).to(tl.int64)
    m = tl.minimum(n - block * 512, 512).to(tl.int32)
    low, high = key_low.to(tl.uint32, bitcast=True), key_high.to(tl.uint32, bitcast=True)
    base = base.to(tl.uint32, bitcast=True)
    if m == 512:
        _encode_block(
            x, packed, saturated, block, m, low, high, base, first, positives, negatives, inverse, middle,
            BITS, PARTS, MANTISSA, STOCHASTIC, True,
        )  # fmt: skip
    else:
        _encode_block(
            x, packed, saturated, block, m, low, high, base, first, positives, negatives, inverse, middle,
            BITS, PARTS, MANTISSA, STOCHASTIC, False,
        )  # fmt: skip


@triton.jit
def _decode_block(
    packed, out, block, m, first, positives, negatives,
    BITS: tl.constexpr, PARTS: tl.constexpr, MANTISSA: tl.constexpr, ADD: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    start = block * 512
    e, j = tl.arange(0, PARTS)[:, None], tl.arange(0, 512 // PARTS)[None, :]
    length = 512 // PARTS if FULL else (m + 7) // 8 * 8 // PARTS
    at = e * length + j
    own = j < length
    there = own & (at < m)
    code = load_planes(packed + block * (64 * BITS), length, e, j, own, BITS, PARTS, FULL)
    code = tl.minimum(code, positives + negatives)
    negative = code > positives
    index = tl.where(negative, code - positives, code)
    pattern = tl.where(index > 0, (index + (first - 1)) << (23 - MANTISSA), 0)
    value = (pattern ^ (negative.to(tl.int32) << 31)).to(tl.float32, bitcast=True)
    to = out + start + at
    if FULL:
        tl.store(to, tl.load(to) + value if ADD else value)
    else:
        tl.store(to, tl.load(to, mask=there, other=0.0) + value if ADD else value, mask=there)


@triton.jit(do_not_specialize=["n", "first", "positives", "negatives"], do_not_specialize_on_alignment=["packed"])
def decode(
    packed, out, n, first, positives, negatives,
    BITS: tl.constexpr, PARTS: tl.constexpr, MANTISSA: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """One program a block of 512: packed codes -> out float32 [n], written or added to."""
    block = tl.program_id(0).to(tl.int64)
    m = tl.minimum(n - block * 512, 512).to(tl.int32)
    if m == 512:
        _decode_block(packed, out, block, m, first, positives, negatives, BITS, PARTS, MANTISSA, ADD, True)
    else:
        _decode_block(packed, out, block, m, first, positives, negatives, BITS, PARTS, MANTISSA, ADD, False)
