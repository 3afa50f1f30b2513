"""The bucketed quantisers in Triton: bit for bit what `reference.quantise` gives.

One program takes one block of the packed layout: 512 elements as PARTS rows, so that the symbols that share a byte lie
in one column, and nothing but a bucket's scale crosses lanes. What keeps the bits equal on a GPU:

- `enable_fp_fusion=False` at every launch: no fused multiply-add (`launch.py`).
- `tl.math.div_rn`, never `/`, which is off by up to 2 units in the last place.
- Largest magnitudes as integers, whose order is that of floats without NaN.
- A flipped sign bit instead of a unary minus, which is 0 - x and loses the sign of zero.
- Scales byte by byte: a message may lie at any address, and a GPU refuses words that do not.
- Float64 sums folded in half, in the order of the reference.
"""

import triton
import triton.language as tl

from thinwire.kernels.gpu.programs.planes import load_planes, store_planes
from thinwire.kernels.gpu.programs.words import hash32, load_word, store_word, uniform24

UNIFORM = tl.constexpr(0)
EXPONENTIAL = tl.constexpr(1)
LEVELS = tl.constexpr(2)
SIGN = tl.constexpr(3)
_INFINITY = tl.constexpr(0x7F800000)
_NAN = tl.constexpr(0x7FC00000)
_SMALL = tl.constexpr(0x0D800000)  # 2^-100: scales below are lifted by 2^100
_LARGE = tl.constexpr(0x71800000)  # 2^100: scales from there on are lowered by as much


@triton.jit
def fold(v):
    """The sum of 512 float64: halves are added until one is left."""
    for step in tl.static_range(9):
        v = tl.sum(tl.reshape(v, (2, 256 >> step)), axis=0)
    return tl.sum(v, axis=0)


@triton.jit
def _row(x, start, width, ranks, RANKS: tl.constexpr):
    """512 elements in order, zeros behind the end, as bit patterns, and which of them there are."""
    at = tl.arange(0, 512)
    held = at < width
    v = tl.load(x + start + at, mask=held, other=0.0)
    if RANKS:
        v = tl.math.div_rn(v, ranks.to(tl.float32))
    return v, held


@triton.jit
def _bucket_sums(x, start, width, ranks, RANKS: tl.constexpr, KIND: tl.constexpr, L2: tl.constexpr):
    """Of a bucket: its largest magnitude as bits, and its sums by runs of 512, each folded: squares, or the negative
    elements and the others, and how many of each there are."""
    run = tl.arange(0, 512)
    top = tl.full((), 0, tl.int32)
    first, second = tl.zeros((512,), tl.float64), tl.zeros((512,), tl.float64)
    below, above = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
    for r in range((width + 511) // 512):
        v, held = _row(x, start + r * 512, width - r * 512, ranks, RANKS)
        top = tl.maximum(top, tl.max(v.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=0))
        if KIND == SIGN:
            up = v >= 0
            wide = v.to(tl.float64)
            first = tl.where(run == r, fold(tl.where(held & (up == 0), wide, 0.0)), first)
            second = tl.where(run == r, fold(tl.where(held & up, wide, 0.0)), second)
            above += tl.sum((held & up).to(tl.int32), axis=0)
            below += tl.sum((held & (up == 0)).to(tl.int32), axis=0)
        elif L2:
            wide = v.to(tl.float64)
            first = tl.where(run == r, fold(wide * wide), first)
    return top, first, second, below, above


@triton.jit
def _mean(sums, count, finite):
    total = fold(sums) + 0.0
    mean = (total / tl.maximum(count, 1).to(tl.float64)).to(tl.float32)
    return tl.where(finite, mean.to(tl.int32, bitcast=True), _NAN)


@triton.jit
def _scale(x, start, width, scales, bucket, ranks, RANKS: tl.constexpr, KIND: tl.constexpr, L2: tl.constexpr):
    """The scale of a bucket, or its two means, as bit patterns, written where they belong."""
    top, first, second, below, above = _bucket_sums(x, start, width, ranks, RANKS, KIND, L2)
    finite = top < _INFINITY
    if KIND == SIGN:
        low, high = _mean(first, below, finite), _mean(second, above, finite)
        store_word(scales + bucket * 8, low)
        store_word(scales + bucket * 8 + 4, high)
        pattern = low
    else:
        if L2:
            norm = tl.sqrt(fold(first))
            single = tl.where(norm > 3.4028234663852886e38, 3.4028234663852886e38, norm).to(tl.float32)
            top = single.to(tl.int32, bitcast=True)
        pattern = tl.where(finite, top, _NAN)
        store_word(scales + bucket * 4, pattern)
    return pattern


@triton.jit(do_not_specialize=["n", "bucket", "ranks"], do_not_specialize_on_alignment=["scales"])
def scale_buckets(x, scales, n, bucket, ranks, RANKS: tl.constexpr, KIND: tl.constexpr, L2: tl.constexpr):
    """One program a bucket of up to 2^18 elements: x float32 [n] -> the scales of a message."""
    which = tl.program_id(0).to(tl.int64)
    start = which * bucket
    width = tl.minimum(n - start, bucket).to(tl.int32)
    _scale(x, start, width, scales, which, ranks, RANKS, KIND, L2)


@triton.jit
def _magnitude(bits, pattern, numerator):
    """|x| * (numerator / scale), 0 where the scale is 0 or NaN."""
    finite = pattern < _INFINITY
    lift = tl.where(
        pattern < _SMALL,
        1.2676506002282294e30,
        tl.where(finite & (pattern >= _LARGE), 7.888609052210118e-31, 1.0),
    )
    usable = finite & (pattern > 0)
    divisor = tl.where(usable, pattern.to(tl.float32, bitcast=True) * lift, 1.0)
    factor = tl.math.div_rn(numerator, divisor)
    scaled = ((bits & 0x7FFFFFFF).to(tl.float32, bitcast=True) * lift) * factor
    return tl.where(usable, scaled, 0.0)


@triton.jit
def _level(bits, pattern, drawn, levels, count, KIND: tl.constexpr, TOP: tl.constexpr):
    """The level of each element, without its sign."""
    numerator: tl.constexpr = TOP if KIND == UNIFORM else 1
    ratio = _magnitude(bits, pattern, tl.full((), numerator, tl.float32))
    if KIND == UNIFORM:
        level = tl.minimum((ratio + uniform24(drawn)).to(tl.int32), TOP)
    elif KIND == EXPONENTIAL:
        smallest = tl.full((), (128 - TOP) << 23, tl.int32).to(tl.float32, bitcast=True)
        upscale = tl.full((), (126 + TOP) << 23, tl.int32).to(tl.float32, bitcast=True)
        carried = ((ratio.to(tl.int32, bitcast=True) + (drawn & 0x7FFFFF).to(tl.int32)) >> 23) - (127 - TOP)
        below = (uniform24(drawn) < ratio * upscale).to(tl.int32)
        level = tl.minimum(tl.where(ratio >= smallest, carried, below), TOP)
    else:
        level = tl.zeros_like(bits)
        for at in range(1, count - 1):
            level += (tl.load(levels + at) <= ratio).to(tl.int32)
        low, high = tl.load(levels + level), tl.load(levels + level + 1)
        level += (uniform24(drawn) < tl.math.div_rn(ratio - low, high - low)).to(tl.int32)
    return level


@triton.jit
def _pattern_of(scales, first, at, bucket, mask, WORDS: tl.constexpr, WORD: tl.constexpr, EVEN: tl.constexpr):
    """The scale of each element of a block whose first element is number `first`."""
    begin = first // bucket
    if EVEN:  # a block lies in one bucket
        word = load_word(scales + (begin * WORDS + WORD) * 4, True, False)
    else:
        which = begin + ((first - begin * bucket).to(tl.int32) + at) // bucket
        word = load_word(scales + (which * WORDS + WORD) * 4, mask, True)
    return word


@triton.jit
def _encode_block(
    x, scales, packed, block, m, levels, count, key_low, key_high, base, ranks, bucket,
    KIND: tl.constexpr, BITS: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, RANKS: tl.constexpr,
    L2: tl.constexpr, FUSED: tl.constexpr, EVEN: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    top: tl.constexpr = (1 << (BITS - 1)) - 1
    words: tl.constexpr = 2 if KIND == SIGN else 1
    start = block * 512
    e, j = tl.arange(0, PARTS)[:, None], tl.arange(0, 512 // PARTS)[None, :]
    length = 512 // PARTS if FULL else (m + 7) // 8 * 8 // PARTS
    at = e * length + j
    own = j < length
    there = own & (at < m)
    v = tl.load(x + start + at) if FULL else tl.load(x + start + at, mask=there, other=0.0)
    if RANKS:
        v = tl.math.div_rn(v, ranks.to(tl.float32))
    bits = v.to(tl.int32, bitcast=True)
    if FUSED:
        if KIND == SIGN or L2:
            pattern = _scale(x, start, m, scales, block, ranks, RANKS, KIND, L2)
        else:
            largest = tl.max(tl.max(bits & 0x7FFFFFFF, axis=1), axis=0)
            pattern = tl.where(largest < _INFINITY, largest, _NAN)
            store_word(scales + block * 4, pattern)
    else:
        pattern = _pattern_of(scales, start, at, bucket, there, words, 0, EVEN)
    if KIND == SIGN:
        symbols = ((v >= 0) & ((pattern & 0x7FFFFFFF) <= _INFINITY)).to(tl.int32)
    else:
        position = base + start.to(tl.uint32) + at.to(tl.uint32)
        level = _level(bits, pattern, hash32(position, key_low, key_high), levels, count, KIND, top)
        symbols = level | tl.where((bits < 0) & (level > 0), top + 1, 0)
    if not FULL:
        symbols = tl.where(there, symbols, 0)
    store_planes(symbols, packed + block * (64 * WIDTH), length, j, own, WIDTH, PARTS, FULL)


@triton.jit(
    do_not_specialize=["n", "count", "key_low", "key_high", "base", "ranks", "bucket"],
    do_not_specialize_on_alignment=["scales", "packed", "levels"],
)
def encode(
    x, scales, packed, levels, n, count, key_low, key_high, base, ranks, bucket,
    KIND: tl.constexpr, BITS: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, RANKS: tl.constexpr,
    L2: tl.constexpr, FUSED: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """One program a block of 512: x float32 [n] -> packed codes, and the scales if FUSED (buckets of 512)."""
    block = tl.program_id(0).to(tl.int64)
    m = tl.minimum(n - block * 512, 512).to(tl.int32)
    low, high = key_low.to(tl.uint32, bitcast=True), key_high.to(tl.uint32, bitcast=True)
    base = base.to(tl.uint32, bitcast=True)
    if m == 512:
        _encode_block(
            x, scales, packed, block, m, levels, count, low, high, base, ranks, bucket,
            KIND, BITS, WIDTH, PARTS, RANKS, L2, FUSED, EVEN, True,
        )  # fmt: skip
    else:
        _encode_block(
            x, scales, packed, block, m, levels, count, low, high, base, ranks, bucket,
            KIND, BITS, WIDTH, PARTS, RANKS, L2, FUSED, EVEN, False,
        )  # fmt: skip


@triton.jit
def _value(code, pattern, other, levels, count, inverse, KIND: tl.constexpr, TOP: tl.constexpr):
    """The elements of codes whose scales are these patterns."""
    index = code & TOP
    if KIND == SIGN:
        value = tl.where((code & 1) > 0, other, pattern)
    else:
        if KIND == UNIFORM:
            magnitude = index.to(tl.float32) * inverse
        elif KIND == EXPONENTIAL:
            magnitude = tl.where(index > 0, (index + (127 - TOP)) << 23, 0).to(tl.float32, bitcast=True)
        else:
            magnitude = tl.load(levels + tl.minimum(index, count - 1))
        value = (pattern.to(tl.float32, bitcast=True) * magnitude).to(tl.int32, bitcast=True)
        value ^= (code & (TOP + 1)) * (-2147483648 // (TOP + 1))
    return value.to(tl.float32, bitcast=True)


@triton.jit
def _decode_block(
    scales, packed, out, block, m, levels, count, bucket, inverse,
    KIND: tl.constexpr, BITS: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, EVEN: tl.constexpr,
    ADD: tl.constexpr, NEGATED: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    top: tl.constexpr = (1 << (BITS - 1)) - 1
    words: tl.constexpr = 2 if KIND == SIGN else 1
    start = block * 512
    e, j = tl.arange(0, PARTS)[:, None], tl.arange(0, 512 // PARTS)[None, :]
    length = 512 // PARTS if FULL else (m + 7) // 8 * 8 // PARTS
    at = e * length + j
    own = j < length
    there = own & (at < m)
    # whole bytes may be plain symbols, which nothing follows
    read = there if PARTS == 1 else own
    code = load_planes(packed + block * (64 * WIDTH), length, e, j, read, WIDTH, PARTS, FULL)
    pattern = _pattern_of(scales, start, at, bucket, there, words, 0, EVEN)
    other = _pattern_of(scales, start, at, bucket, there, words, words - 1, EVEN) if KIND == SIGN else pattern
    if NEGATED:
        pattern, other = pattern ^ -2147483648, other ^ -2147483648
    value = _value(code, pattern, other, levels, count, inverse, KIND, top)
    to = out + start + at
    if FULL:
        tl.store(to, tl.load(to) + value if ADD else value)
    else:
        tl.store(to, tl.load(to, mask=there, other=0.0) + value if ADD else value, mask=there)


@triton.jit(
    do_not_specialize=["n", "count", "bucket"],
    do_not_specialize_on_alignment=["scales", "packed", "levels"],
)
def decode(
    scales, packed, out, levels, n, count, bucket, inverse,
    KIND: tl.constexpr, BITS: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, EVEN: tl.constexpr,
    ADD: tl.constexpr, NEGATED: tl.constexpr,
):  # fmt: skip
    """One program a block of 512: a message -> out float32 [n], written, added to or (NEGATED) subtracted from."""
    block = tl.program_id(0).to(tl.int64)
    m = tl.minimum(n - block * 512, 512).to(tl.int32)
    if m == 512:
        _decode_block(
            scales, packed, out, block, m, levels, count, bucket, inverse,
            KIND, BITS, WIDTH, PARTS, EVEN, ADD, NEGATED, True,
        )  # fmt: skip
    else:
        _decode_block(
            scales, packed, out, block, m, levels, count, bucket, inverse,
            KIND, BITS, WIDTH, PARTS, EVEN, ADD, NEGATED, False,
        )  # fmt: skip
