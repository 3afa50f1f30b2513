"""A rank's share of a mean, with the residual, and whether all its quotients are finite."""

import triton
import triton.language as tl

_INFINITY = tl.constexpr(0x7F800000)


@triton.jit(do_not_specialize=["n", "ranks"])
def share(x, residual, out, bad, n, ranks, RANKS: tl.constexpr, RESIDUAL: tl.constexpr):
    """One program for 1,024 elements: out = x / ranks + residual; `bad` becomes 1 if a quotient is not finite."""
    start = tl.program_id(0).to(tl.int64) * 1024
    at = tl.arange(0, 1024)
    if start + 1024 <= n:
        v = tl.load(x + start + at)
        if RANKS:
            v = tl.math.div_rn(v, ranks.to(tl.float32))
        top = tl.max(v.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=0)
        if RESIDUAL:
            v += tl.load(residual + start + at)
        tl.store(out + start + at, v)
    else:
        there = at < n - start
        v = tl.load(x + start + at, mask=there, other=0.0)
        if RANKS:
            v = tl.math.div_rn(v, ranks.to(tl.float32))
        top = tl.max(v.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=0)
        if RESIDUAL:
            v += tl.load(residual + start + at, mask=there, other=0.0)
        tl.store(out + start + at, v, mask=there)
    if top >= _INFINITY:
        tl.store(bad, 1)


@triton.jit(do_not_specialize=["n"])
def spoil(out, bad, n):
    """NaN throughout, where `bad` says so; otherwise nothing but the flag is read."""
    if tl.load(bad) != 0:
        at = tl.program_id(0).to(tl.int64) * 1024 + tl.arange(0, 1024)
        nan = tl.full((1024,), 0x7FC00000, tl.int32).to(tl.float32, bitcast=True)
        tl.store(out + at, nan, mask=at < n)


@triton.jit(do_not_specialize=["n"])
def find_bad(x, bad, n):
    """`bad` becomes 1 if one of 1,024 elements is not finite."""
    start = tl.program_id(0).to(tl.int64) * 1024
    at = tl.arange(0, 1024)
    whole = start + 1024 <= n
    v = tl.load(x + start + at) if whole else tl.load(x + start + at, mask=at < n - start, other=0.0)
    if tl.max(v.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=0) >= _INFINITY:
        tl.store(bad, 1)
