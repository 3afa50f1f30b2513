"""Bucketed stochastic quantisers in plain torch: the specification of `thinwire.kernels.quantise`.

A bucket is `bucket` consecutive elements (the last one may be shorter) with one float32 scale. All randomness is
`hash32` of the position. A bucket that holds an infinity or a NaN gets the scale NaN and codes 0: it decodes to NaN
throughout, so that whoever checks gradients for overflow sees it on every rank.

Scales near the ends of the float range are divided safely: x and the scale are first multiplied by 2^100 when the scale
is below 2^-100, by 2^-100 when it is 2^100 or more; both are exact for all that matters at that scale.
"""

import struct
from typing import Literal

import torch
from torch import Tensor

from thinwire.errors import WireError
from thinwire.kernels.reference.hashing import hash32, uniform24
from thinwire.kernels.reference.packing import pack

Norm = Literal["max", "l2"]
TREE = 512
_LARGEST = 3.4028234663852886e38


def single(value: float) -> float:
    """The float32 nearest to a Python float."""
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


def bucket_count(numel: int, bucket: int) -> int:
    """Buckets that `numel` elements fill, the last one perhaps in part."""
    return -(-numel // bucket)


def in_buckets(x: Tensor, bucket: int) -> Tensor:
    """x [n] as rows [count, min(bucket, n)], the last one padded with zeros."""
    width = max(1, min(bucket, x.numel()))
    return torch.nn.functional.pad(x, (0, -x.numel() % width)).view(-1, width)


def to_elements(per_bucket: Tensor, bucket: int, numel: int) -> Tensor:
    """One value a bucket -> the same value for each of its elements, [n]."""
    width = max(1, min(bucket, numel))
    return per_bucket.unsqueeze(1).expand(-1, width).reshape(-1)[:numel]


def tree_sum(rows: Tensor) -> Tensor:
    """Row sums of float64 [count, width] in one defined order, whatever the device.

    Rows longer than 512 are cut into runs of 512, whose sums are summed the same way. A run is padded with zeros to a
    power of two and folded in half, v[:h] + v[h:], until one value is left.
    """
    count, width = rows.shape
    while width > 1:
        run = min(TREE, 1 << (width - 1).bit_length())
        rows = torch.nn.functional.pad(rows, (0, -width % run)).view(count, -1, run)
        while run > 1:
            run //= 2
            rows = rows[..., :run] + rows[..., run:]
        rows = rows.view(count, -1)
        width = rows.shape[1]
    return rows.view(count)


def _l2(rows: Tensor) -> Tensor:
    return tree_sum(rows.double().square()).sqrt().clamp(max=_LARGEST).float()


def bucket_scales(x: Tensor, bucket: int, norm: Norm) -> Tensor:
    """The largest magnitude or the L2 norm of each bucket, float32 [count]; NaN for a bucket that is not finite.

    The L2 norm is summed in float64, so it neither overflows nor underflows before it is rounded to float32, and it is
    capped at the largest float32. It never falls below the largest magnitude: rounding is monotone, and every
    element is at most the norm. Any scale at or above the largest magnitude keeps the rounding unbiased.
    """
    rows = in_buckets(x, bucket)
    finite = torch.isfinite(rows).all(1)
    return torch.where(finite, rows.abs().amax(1) if norm == "max" else _l2(rows), torch.nan)


def scales_to_bytes(scales: Tensor) -> Tensor:
    """Little-endian float32 as they travel."""
    return scales.contiguous().view(torch.uint8).view(-1)


def scales_from_bytes(data: Tensor, count: int) -> Tensor:
    """float32 [count] from bytes at any address."""
    if data.numel() != 4 * count:
        raise WireError(
            f"{count} scales are {4 * count} bytes, but {data.numel()} came;"
            " the message is truncated or of another codec"
        )
    return data.clone().view(torch.float32)


def scaled_magnitudes(x: Tensor, scales: Tensor, bucket: int, numerator: float) -> Tensor:
    """|x| * (numerator / scale) for each element, in float32; 0 where the scale is 0 or NaN."""
    lift = torch.ones_like(scales).masked_fill(scales < 2.0**-100, 2.0**100).masked_fill(scales >= 2.0**100, 2.0**-100)
    factor = torch.full_like(scales, numerator) / (scales * lift)
    usable = to_elements(scales > 0, bucket, x.numel())
    magnitude = (x.abs() * to_elements(lift, bucket, x.numel())) * to_elements(factor, bucket, x.numel())
    return magnitude.masked_fill(~usable, 0.0)


def sign_magnitude(x: Tensor, level: Tensor, bits: int) -> Tensor:
    """Codes (sign << (bits - 1)) | level; level 0 has no sign, so that equal values have equal codes."""
    sign = (torch.signbit(x) & (level > 0)).to(torch.int32)
    return (level | (sign << (bits - 1))).to(torch.uint8)


def write_signed(
    symbols: Tensor, magnitude: Tensor, scales: Tensor, bits: int, bucket: int, out: Tensor, add: bool
) -> None:
    """scale * magnitude with the sign of the code, written to `out` or added to it."""
    value = to_elements(scales, bucket, out.numel()) * magnitude
    negative = (symbols.to(torch.int32) >> (bits - 1)) > 0
    value = torch.where(negative, -value, value)
    out.add_(value) if add else out.copy_(value)


def uniform_symbols(x: Tensor, bits: int, bucket: int, norm: Norm, key: int, base: int) -> tuple[Tensor, Tensor]:
    """QSGD (Alistarh et al. 2017): level = floor(s |x| / scale + u) with s = 2^(bits-1) - 1; codes and scale bytes."""
    s = 2 ** (bits - 1) - 1
    scales = bucket_scales(x, bucket, norm)
    drawn = uniform24(hash32(key, base, x.numel(), x.device))
    level = (scaled_magnitudes(x, scales, bucket, s) + drawn).to(torch.int32).clamp(max=s)
    return sign_magnitude(x, level, bits), scales_to_bytes(scales)


def uniform_dequantise(symbols: Tensor, scales: Tensor, bits: int, bucket: int, out: Tensor, add: bool) -> None:
    """scale * (level * float32(1 / s)); the top level gives the scale exactly for every s in use."""
    s = 2 ** (bits - 1) - 1
    magnitude = (symbols.to(torch.int32) & s).float() * single(1 / s)
    found = scales_from_bytes(scales, bucket_count(out.numel(), bucket))
    write_signed(symbols, magnitude, found, bits, bucket, out, add)


def exponential_symbols(x: Tensor, bits: int, bucket: int, norm: Norm, key: int, base: int) -> tuple[Tensor, Tensor]:
    """NUQSGD (Ramezani-Kebrya et al. 2021) with levels 0, 2^-S, ..., 1/2, 1 and S = 2^(bits-1) - 2.

    Between two powers of two, 23 random bits are added to the mantissa: the carry into the exponent has just the
    probability that unbiased rounding asks for. Below 2^-S the level is 1 with probability r 2^S, else 0.
    """
    top = 2 ** (bits - 1) - 1
    scales = bucket_scales(x, bucket, norm)
    drawn = hash32(key, base, x.numel(), x.device)
    ratio = scaled_magnitudes(x, scales, bucket, 1.0)
    carried = ((ratio.view(torch.int32).to(torch.int64) + (drawn & 0x7FFFFF)) >> 23) - (127 - top)
    smallest = 2.0 ** (1 - top)
    level = torch.where(ratio >= smallest, carried, (uniform24(drawn) < ratio * 2.0 ** (top - 1)).to(torch.int64))
    return sign_magnitude(x, level.clamp(max=top).to(torch.int32), bits), scales_to_bytes(scales)


def exponential_dequantise(symbols: Tensor, scales: Tensor, bits: int, bucket: int, out: Tensor, add: bool) -> None:
    """scale * 2^(index - top); index 0 is zero."""
    top = 2 ** (bits - 1) - 1
    index = symbols.to(torch.int32) & top
    magnitude = torch.where(index > 0, (index + (127 - top)) << 23, 0).to(torch.int32).view(torch.float32)
    found = scales_from_bytes(scales, bucket_count(out.numel(), bucket))
    write_signed(symbols, magnitude, found, bits, bucket, out, add)


def levels_symbols(
    x: Tensor, levels: Tensor, bits: int, bucket: int, norm: Norm, key: int, base: int
) -> tuple[Tensor, Tensor]:
    """Unbiased rounding to any table 0 = l_0 < ... < l_L = 1: up from l_j at the rate (r - l_j) / (l_j+1 - l_j)."""
    scales = bucket_scales(x, bucket, norm)
    drawn = uniform24(hash32(key, base, x.numel(), x.device))
    ratio = scaled_magnitudes(x, scales, bucket, 1.0)
    below = (torch.searchsorted(levels, ratio, right=True) - 1).clamp(max=levels.numel() - 2)
    chance = (ratio - levels[below]) / (levels[below + 1] - levels[below])
    level = below + (drawn < chance)
    return sign_magnitude(x, level.to(torch.int32), bits), scales_to_bytes(scales)


def levels_dequantise(
    symbols: Tensor, scales: Tensor, levels: Tensor, bits: int, bucket: int, out: Tensor, add: bool
) -> None:
    """scale * l_index; an index beyond the table counts as the last one."""
    index = (symbols.to(torch.int64) & (2 ** (bits - 1) - 1)).clamp(max=levels.numel() - 1)
    found = scales_from_bytes(scales, bucket_count(out.numel(), bucket))
    write_signed(symbols, levels[index], found, bits, bucket, out, add)


def sign_symbols(x: Tensor, bucket: int) -> tuple[Tensor, Tensor]:
    """1-bit SGD (Seide et al. 2014): bit = x >= 0; a bucket sends the means of both classes, (below, above) zero.

    The means minimise the squared error given the bits; an empty class has the mean 0.
    """
    above = x >= 0
    rows, rows_above = in_buckets(x.double(), bucket), in_buckets(above, bucket)
    held = in_buckets(torch.ones_like(above), bucket)
    finite = torch.isfinite(rows).all(1)
    means = []
    for members in (held & ~rows_above, held & rows_above):
        total = tree_sum(torch.where(members, rows, 0.0)) + 0.0
        mean = (total / members.sum(1).clamp(min=1)).float()
        means.append(torch.where(finite, mean, torch.nan))
    symbols = (above & to_elements(finite, bucket, x.numel())).to(torch.uint8)
    return symbols, scales_to_bytes(torch.stack(means, 1))


def sign_dequantise(symbols: Tensor, scales: Tensor, bucket: int, out: Tensor, add: bool) -> None:
    """The mean of the class that each bit names, written to `out` or added to it."""
    means = scales_from_bytes(scales, 2 * bucket_count(out.numel(), bucket)).view(-1, 2)
    below, above = (to_elements(means[:, side], bucket, out.numel()) for side in (0, 1))
    value = torch.where((symbols & 1) > 0, above, below)
    out.add_(value) if add else out.copy_(value)


def clip_to_sigma(x: Tensor, bucket: int, factor: float) -> Tensor:
    """x with each bucket clamped to +- factor * sigma (TernGrad, Wen et al. 2017, clips at 2.5).

    sigma = root mean square of the bucket, the deviation from 0 and not from the mean: the same for gradients, whose
    mean is small, and a constant bucket is not clipped to nothing. A bucket that is not finite passes unchanged.
    """
    rows = in_buckets(x, bucket)
    held = in_buckets(torch.ones_like(x, dtype=torch.bool), bucket).sum(1)
    sigma = (tree_sum(rows.double().square()) / held.double()).sqrt()
    limit = (sigma * factor).clamp(max=_LARGEST).float()
    limit = torch.where(torch.isfinite(rows).all(1), limit, torch.inf)
    limit = to_elements(limit, bucket, x.numel())
    return torch.where(x > limit, limit, torch.where(x < -limit, -limit, x))


def pack_into(symbols: Tensor, scales: Tensor, bits: int, scales_out: Tensor, packed_out: Tensor) -> None:
    """The fused encoders in two steps: scales and packed symbols into the buffers of a message."""
    scales_out.copy_(scales)
    packed_out.copy_(pack(symbols, bits))
