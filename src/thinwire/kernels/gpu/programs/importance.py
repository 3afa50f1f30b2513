"""Importances: bit for bit what `reference.importance` gives."""

import triton
import triton.language as tl

from thinwire.kernels.gpu.programs.quantise import fold


@triton.jit(do_not_specialize=["n"])
def fold_runs(x, sums, n, SQUARED: tl.constexpr):
    """One program for 512 elements: their sum in float64, or that of their squares, by halves."""
    start = tl.program_id(0).to(tl.int64) * 512
    at = tl.arange(0, 512)
    if start + 512 <= n:
        wide = tl.load(x + start + at).to(tl.float64)
    else:
        wide = tl.load(x + start + at, mask=at < n - start, other=0.0).to(tl.float64)
    tl.store(sums + tl.program_id(0), fold(wide * wide if SQUARED else wide))


@triton.jit
def _score(v, w, floor, ranks):
    size = tl.abs(w) + floor
    return tl.math.div_rn(tl.abs(v), tl.where(floor > 0, size, 1.0)) * ranks


@triton.jit(do_not_specialize=["n", "ranks"])
def scores(v, w, floor, out, n, ranks):
    """One program for 512 elements: |v| / (|w| + floor) * ranks; |v| * ranks unless the floor is above 0."""
    start = tl.program_id(0).to(tl.int64) * 512
    at = tl.arange(0, 512)
    added, many = tl.load(floor), ranks.to(tl.float32)
    if start + 512 <= n:
        tl.store(out + start + at, _score(tl.load(v + start + at), tl.load(w + start + at), added, many))
    else:
        there = at < n - start
        gradient = tl.load(v + start + at, mask=there, other=0.0)
        weight = tl.load(w + start + at, mask=there, other=1.0)
        tl.store(out + start + at, _score(gradient, weight, added, many), mask=there)
