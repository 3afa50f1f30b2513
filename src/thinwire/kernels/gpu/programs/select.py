"""The largest elements of a tensor or of its chunks, and those above a threshold: what `reference.sparse` chooses.

Magnitudes are compared as integers of 31 bits, whose order is theirs. The smallest one chosen is found digit by digit
from counts, so that nobody waits for the device; positions follow in their order from how many elements before them
are larger than it, and how many are equal. Counts are sums of integers: atomic additions give the same in any order.
"""

import triton
import triton.language as tl

BLOCK = tl.constexpr(512)
DIGITS = tl.constexpr(4)  # of 8, 8, 8 and 7 bits
BINS = tl.constexpr(256)


@triton.jit
def _keys(x, start, end, WIDTH: tl.constexpr):
    """Magnitudes of the elements from `start` on as integers; -1 at `end` and behind it."""
    at = tl.arange(0, WIDTH)
    if start + WIDTH <= end:
        key = tl.load(x + start + at).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    else:
        there = at < end - start
        v = tl.load(x + start + at, mask=there, other=0.0)
        key = tl.where(there, v.to(tl.int32, bitcast=True) & 0x7FFFFFFF, -1)
    return key


@triton.jit
def _bits_of(digit):
    return tl.where(digit == DIGITS - 1, 7, 8)


@triton.jit
def _narrowed(bins, k, digits):
    """The first digits of the k-th largest key, and how many of the keys that begin so are among the k largest."""
    at = tl.arange(0, BINS)
    prefix, left = tl.full((), 0, tl.int32), k.to(tl.int32)
    for digit in range(digits):
        count = tl.load(bins + digit * BINS + at)
        from_here_on = tl.sum(count, axis=0) - tl.cumsum(count, axis=0) + count
        found = tl.sum((from_here_on >= left).to(tl.int32), axis=0) - 1
        left -= tl.sum(tl.where(at > found, count, 0), axis=0)
        prefix = (prefix << _bits_of(digit)) | found
    return prefix, left


@triton.jit(do_not_specialize=["n", "k", "digit"])
def count_digits(x, bins, n, k, digit, BLOCKS: tl.constexpr):
    """One program for BLOCKS * 512 elements: bins[digit] counts this digit of keys that begin as the k-th largest."""
    prefix, _ = _narrowed(bins, k, digit)
    bits = _bits_of(digit)
    shift = tl.maximum(23 - 8 * digit, 0)
    start = tl.program_id(0).to(tl.int64) * (BLOCKS * BLOCK)
    end = tl.minimum(start + BLOCKS * BLOCK, n)
    total = tl.zeros((BINS,), tl.int32)
    for at in range(start, end, BLOCK):
        key = _keys(x, at, end, BLOCK)
        total += tl.histogram((key >> shift) & ((1 << bits) - 1), BINS, mask=(key >> shift >> bits) == prefix)
    tl.atomic_add(bins + digit * BINS + tl.arange(0, BINS), total, mask=total > 0, sem="relaxed")


@triton.jit(do_not_specialize=["k"])
def find_threshold(bins, threshold, k):
    """One program: the k-th largest key, and how many elements that are equal to it are chosen."""
    key, ties = _narrowed(bins, k, DIGITS)
    tl.store(threshold, key)
    tl.store(threshold + 1, ties)


@triton.jit(do_not_specialize=["n"])
def count_chosen(x, threshold, counts, n, BLOCKS: tl.constexpr):
    """One program for BLOCKS * 512 elements: how many lie above the threshold, and how many are equal to it."""
    last = tl.load(threshold)
    start = tl.program_id(0).to(tl.int64) * (BLOCKS * BLOCK)
    end = tl.minimum(start + BLOCKS * BLOCK, n)
    larger, equal = tl.zeros((BLOCK,), tl.int32), tl.zeros((BLOCK,), tl.int32)
    for at in range(start, end, BLOCK):
        key = _keys(x, at, end, BLOCK)
        larger += (key > last).to(tl.int32)
        equal += (key == last).to(tl.int32)
    tl.store(counts + tl.program_id(0) * 2, tl.sum(larger, axis=0))
    tl.store(counts + tl.program_id(0) * 2 + 1, tl.sum(equal, axis=0))


@triton.jit
def _write(x, out, start, end, last, ties, larger, equal, WIDTH: tl.constexpr):
    """Positions of what is chosen, where so many elements before `start` are larger than the last one, or equal."""
    for first in range(start, end, WIDTH):
        key = _keys(x, first, end, WIDTH)
        mine = (key > last).to(tl.int32) + ((key == last).to(tl.int32) << 16)  # both counts in one scan
        here = tl.cumsum(mine, axis=0) - mine
        ties_before = equal + (here >> 16)
        chosen = (key > last) | ((key == last) & (ties_before < ties))
        place = larger + (here & 0xFFFF) + tl.minimum(ties_before, ties)
        tl.store(out + place, first + tl.arange(0, WIDTH), mask=chosen)
        found = tl.sum(mine, axis=0)
        larger += found & 0xFFFF
        equal += found >> 16


@triton.jit(do_not_specialize=["n"])
def write_chosen(x, threshold, ends, out, n, BLOCKS: tl.constexpr):
    """One program for BLOCKS * 512 elements; `ends` are the counts of it and of all programs before it, int64."""
    which = tl.program_id(0).to(tl.int64)
    larger, equal = tl.full((), 0, tl.int64), tl.full((), 0, tl.int64)
    if which > 0:
        larger, equal = tl.load(ends + which * 2 - 2), tl.load(ends + which * 2 - 1)
    start = which * (BLOCKS * BLOCK)
    end = tl.minimum(start + BLOCKS * BLOCK, n)
    _write(x, out, start, end, tl.load(threshold), tl.load(threshold + 1), larger, equal, BLOCK)


@triton.jit
def _count_from(x, start, end, key, WIDTH: tl.constexpr):
    """How many keys are at least this one."""
    count = tl.zeros((WIDTH,), tl.int32)
    for at in range(start, end, WIDTH):
        count += (_keys(x, at, end, WIDTH) >= key).to(tl.int32)
    return tl.sum(count, axis=0)


@triton.jit(do_not_specialize=["n", "each", "rest"])
def choose_in_chunks(x, out, n, chunk, each, rest, WIDTH: tl.constexpr):
    """One program a chunk: positions of its `each` largest, or of the `rest` largest of a shorter last chunk."""
    which = tl.program_id(0).to(tl.int64)
    start = which * chunk
    end = tl.minimum(start + chunk, n)
    k = tl.where(end - start == chunk, each, rest)
    last = tl.full((), 0, tl.int32)
    for at in range(31):
        higher = last | (1 << (30 - at))
        last = tl.where(_count_from(x, start, end, higher, WIDTH) >= k, higher, last)
    ties = k
    if last < 0x7FFFFFFF:
        ties -= _count_from(x, start, end, last + 1, WIDTH)
    zero = tl.full((), 0, tl.int64)
    _write(x, out + which * each, start, end, last, ties, zero, zero, WIDTH)
