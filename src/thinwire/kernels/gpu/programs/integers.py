"""Integers of one scale, several to an int32 lane: bit for bit what `reference.integers` gives."""

import triton
import triton.language as tl

from thinwire.kernels.gpu.programs.words import hash32, uniform24


@triton.jit(do_not_specialize=["n", "count", "ranks", "levels", "key_low", "key_high", "base"])
def encode(
    x, lanes, n, count, ranks, levels, lift, factor, key_low, key_high, base,
    RANKS: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """One program for 512 lanes: digit f of lane j is element f * count + j."""
    j = tl.program_id(0).to(tl.int64) * 512 + tl.arange(0, 512)
    low, high = key_low.to(tl.uint32, bitcast=True), key_high.to(tl.uint32, bitcast=True)
    base = base.to(tl.uint32, bitcast=True)
    most = levels.to(tl.float32)
    total = tl.zeros((512,), tl.int32)
    for field in tl.static_range(32 // BITS):
        at = j + count.to(tl.int64) * field
        there = (j < count) & (at < n)
        v = tl.load(x + at, mask=there, other=0.0)
        if RANKS:
            v = tl.math.div_rn(v, ranks.to(tl.float32))
        drawn = uniform24(hash32(base + at.to(tl.uint32), low, high))
        # finite elements only: a maximum and a minimum of floats are what they seem. Triton's floor flushes subnormals
        code = tl.minimum(tl.maximum((v * lift) * factor + drawn, 0.0 - most), most)
        whole = code.to(tl.int32)
        whole -= (whole.to(tl.float32) > code).to(tl.int32)
        total += tl.where(there, whole, 0) << (field * BITS)
    tl.store(lanes + j, total, mask=j < count)


@triton.jit(do_not_specialize=["n", "count"])
def decode(lanes, out, n, count, unit, scale, BITS: tl.constexpr, ADD: tl.constexpr):
    """One program for 512 lanes: (digit * unit) * scale of every digit."""
    j = tl.program_id(0).to(tl.int64) * 512 + tl.arange(0, 512)
    lane = tl.load(lanes + j, mask=j < count, other=0)
    for field in tl.static_range(32 // BITS):
        digit = (lane << (32 - BITS)) >> (32 - BITS)
        lane = (lane - digit) >> BITS
        at = j + count.to(tl.int64) * field
        there = (j < count) & (at < n)
        value = (digit.to(tl.float32) * unit) * scale
        if ADD:
            value = tl.load(out + at, mask=there, other=0.0) + value
        tl.store(out + at, value, mask=there)
