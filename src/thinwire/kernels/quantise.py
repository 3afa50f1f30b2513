"""The bucketed quantisers, compiled where possible; `reference.quantise` says what they compute.

Every scheme comes in four forms. `*_symbols` gives one code an element and the scales as bytes; an encoder writes a
range of numbers as a message, scales and then packed codes; a decoder reads one and overwrites or adds to a range of
`out`, or the opposite of what it says (`negated`); `*_dequantise` works from plain codes. Encoders and decoders are
prepared for all numbers, which may come later, and then asked for ranges. Messages may lie at any address. `key` and
`base` (position of element 0) fix the random draws. With `ranks`, x / ranks is what is encoded: a share of a mean
that need not be written down first.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from thinwire.errors import CodecError, WireError
from thinwire.kernels.native import native_for, threads_for
from thinwire.kernels.packing import check_symbols, packed_size, unpack
from thinwire.kernels.reference import quantise as reference
from thinwire.kernels.reference.quantise import Norm, bucket_count
from thinwire.kernels.shares import check_ranks

Coder: TypeAlias = Callable[[int, int, Tensor], None]  # the first number, the one behind the last, their message

__all__ = [
    "Coder",
    "Norm",
    "bucket_count",
    "clip_to_sigma",
    "exponential_decoder",
    "exponential_dequantise",
    "exponential_encoder",
    "exponential_symbols",
    "levels_decoder",
    "levels_dequantise",
    "levels_encoder",
    "levels_symbols",
    "packed_size",
    "sign_decoder",
    "sign_dequantise",
    "sign_encoder",
    "sign_symbols",
    "uniform_decoder",
    "uniform_dequantise",
    "uniform_encoder",
    "uniform_symbols",
]

_NO_LEVELS = torch.empty(0)
_MASK32, _MASK64 = 2**32 - 1, 2**64 - 1  # keys and positions wrap around, as in the reference
_SCALE_BYTES = {"uniform": 4, "exponential": 4, "levels": 4, "sign": 8}


def _check_options(scheme: str, levels: Tensor, bits: int, bucket: int, norm: str) -> None:
    if bucket < 1:
        raise CodecError(f"a bucket holds at least one element, not {bucket}")
    if scheme != "sign" and not 2 <= bits <= 8:
        raise CodecError(f"codes with a sign have 2 to 8 bits, not {bits}; choose bits in that range")
    if norm not in ("max", "l2"):
        raise CodecError(f"the norm of a bucket is 'max' or 'l2', not {norm!r}")
    if scheme == "levels":
        check_levels(levels, bits)


def check_levels(levels: Tensor, bits: int) -> None:
    """Refuse a table that is not 0 = l_0 < ... < l_L = 1 in float32, or too long for the width."""
    good = levels.dtype == torch.float32 and levels.dim() == 1 and 2 <= levels.numel() <= 2 ** (bits - 1)
    if not (good and levels[0] == 0 and levels[-1] == 1 and bool((levels[1:] > levels[:-1]).all())):
        raise CodecError(
            f"levels are 2 to {2 ** (bits - 1)} float32 magnitudes for {bits} bits, rising from 0 to 1;"
            f" this table has {levels.numel()} of {levels.dtype}"
        )


def _check_data(x: Tensor) -> None:
    if x.dtype != torch.float32 or x.dim() != 1:
        raise CodecError(f"quantisers take float32 vectors, not {x.dtype} in {x.dim()} dimensions; flatten and convert")


def _check_message(scheme: str, message: Tensor, numel: int, bits: int, bucket: int) -> int:
    """Bytes of the scales, which come first."""
    scales = _SCALE_BYTES[scheme] * bucket_count(numel, bucket)
    size = scales + packed_size(numel, bits)
    if message.dtype != torch.uint8 or message.numel() != size:
        raise WireError(
            f"{numel} elements of {bits} bits in buckets of {bucket} are {size} bytes, but {message.numel()} of"
            f" {message.dtype} came; the message is truncated or of another codec"
        )
    return scales


def _check_scales(scheme: str, scales: Tensor, numel: int, bucket: int) -> None:
    size = _SCALE_BYTES[scheme] * bucket_count(numel, bucket)
    if scales.dtype != torch.uint8 or scales.numel() != size:
        raise WireError(
            f"{numel} elements in buckets of {bucket} have {size} bytes of scales, but {scales.numel()} of"
            f" {scales.dtype} came; the message is truncated or of another codec"
        )


def _reference_symbols(
    scheme: str, x: Tensor, levels: Tensor, bits: int, bucket: int, norm: Norm, key: int, base: int
) -> tuple[Tensor, Tensor]:
    if scheme == "uniform":
        return reference.uniform_symbols(x, bits, bucket, norm, key, base)
    if scheme == "exponential":
        return reference.exponential_symbols(x, bits, bucket, norm, key, base)
    if scheme == "levels":
        return reference.levels_symbols(x, levels, bits, bucket, norm, key, base)
    return reference.sign_symbols(x, bucket)


def _symbols(
    scheme: str, x: Tensor, levels: Tensor, bits: int, bucket: int, norm: Norm, key: int, base: int
) -> tuple[Tensor, Tensor]:
    _check_options(scheme, levels, bits, bucket, norm)
    _check_data(x)
    x = x.detach()
    native = native_for(x, levels)
    if native is None:
        return _reference_symbols(scheme, x, levels, bits, bucket, norm, key, base)
    n = x.numel()
    symbols = torch.empty(n, dtype=torch.uint8)
    scales = torch.empty(_SCALE_BYTES[scheme] * bucket_count(n, bucket), dtype=torch.uint8)
    native.quantise_symbols(
        scheme, x.data_ptr(), n, levels.data_ptr(), levels.numel(), 1, bits, bucket, norm == "l2",
        key & _MASK64, base & _MASK32, scales.data_ptr(), symbols.data_ptr(), threads_for(n),
    )  # fmt: skip
    return symbols, scales


def _encoder(
    scheme: str, x: Tensor, levels: Tensor, bits: int, bucket: int, norm: Norm, key: int, base: int, ranks: int = 1
) -> Coder:
    _check_options(scheme, levels, bits, bucket, norm)
    check_ranks(ranks)
    _check_data(x)
    native, at, end, l2 = native_for(x, levels), x.data_ptr(), x.numel(), norm == "l2"
    table, key, x = (levels.data_ptr(), levels.numel()), key & _MASK64, x.detach()

    def encode(low: int, high: int, message: Tensor) -> None:
        n = _check_range(low, high, end)
        scales = _check_message(scheme, message, n, bits, bucket)
        if native is not None and message.is_cpu and message.is_contiguous():
            to = message.data_ptr()
            native.quantise_encode(
                scheme, at + 4 * low, n, *table, ranks, bits, bucket, l2, key, base + low & _MASK32, to, to + scales,
                threads_for(n),
            )  # fmt: skip
            return
        share = x[low:high] if ranks == 1 else x[low:high] / ranks
        coded = _reference_symbols(scheme, share, levels, bits, bucket, norm, key, base + low)
        reference.pack_into(*coded, bits, message[:scales], message[scales:])

    return encode


def _dequantise(
    scheme: str, symbols: Tensor, scales: Tensor, levels: Tensor, bits: int, bucket: int, out: Tensor, add: bool
) -> None:
    _check_options(scheme, levels, bits, bucket, "max")
    _check_data(out)
    n = out.numel()
    _check_scales(scheme, scales, n, bucket)
    check_symbols(symbols, bits)
    if symbols.numel() != n:
        raise WireError(f"{n} elements need as many symbols, but {symbols.numel()} came")
    native = native_for(symbols, scales, levels, out)
    if native is not None:
        native.quantise_dequantise(
            scheme, scales.data_ptr(), symbols.data_ptr(), levels.data_ptr(), levels.numel(), bits, bucket,
            out.data_ptr(), n, add, False, threads_for(n),
        )  # fmt: skip
    elif scheme == "uniform":
        reference.uniform_dequantise(symbols, scales, bits, bucket, out, add)
    elif scheme == "exponential":
        reference.exponential_dequantise(symbols, scales, bits, bucket, out, add)
    elif scheme == "levels":
        reference.levels_dequantise(symbols, scales, levels, bits, bucket, out, add)
    else:
        reference.sign_dequantise(symbols, scales, bucket, out, add)


def _decoder(scheme: str, levels: Tensor, bits: int, bucket: int, out: Tensor, add: bool, negated: bool) -> Coder:
    _check_options(scheme, levels, bits, bucket, "max")
    _check_data(out)
    native, at, end = native_for(levels, out), out.data_ptr(), out.numel()
    fixed = (levels.data_ptr(), levels.numel(), bits, bucket)

    def decode(low: int, high: int, message: Tensor) -> None:
        n = _check_range(low, high, end)
        scales = _check_message(scheme, message, n, bits, bucket)
        if native is not None and message.is_cpu and message.is_contiguous():
            said = message.data_ptr()
            native.quantise_decode(scheme, said, said + scales, *fixed, at + 4 * low, n, add, negated, threads_for(n))
            return
        side = message[:scales]
        if negated:
            side = side.clone().view(torch.float32).neg().view(torch.uint8)
        _dequantise(scheme, unpack(message[scales:], n, bits), side, levels, bits, bucket, out[low:high], add)

    return decode


def _check_range(low: int, high: int, end: int) -> int:
    """How many numbers lie in it."""
    if not 0 <= low <= high <= end:
        raise CodecError(f"numbers {low} to {high} are not among {end}")
    return high - low


def uniform_symbols(x: Tensor, bits: int, bucket: int, norm: Norm, key: int, base: int) -> tuple[Tensor, Tensor]:
    """QSGD: equally spaced levels; codes [n] and scale bytes."""
    return _symbols("uniform", x, _NO_LEVELS, bits, bucket, norm, key, base)


def uniform_encoder(x: Tensor, bits: int, bucket: int, norm: Norm, key: int, base: int, ranks: int = 1) -> Coder:
    """QSGD straight into a message."""
    return _encoder("uniform", x, _NO_LEVELS, bits, bucket, norm, key, base, ranks)


def uniform_decoder(bits: int, bucket: int, out: Tensor, add: bool, negated: bool = False) -> Coder:
    """QSGD straight from a message."""
    return _decoder("uniform", _NO_LEVELS, bits, bucket, out, add, negated)


def uniform_dequantise(symbols: Tensor, scales: Tensor, bits: int, bucket: int, out: Tensor, add: bool) -> None:
    """QSGD from plain codes."""
    _dequantise("uniform", symbols, scales, _NO_LEVELS, bits, bucket, out, add)


def exponential_symbols(x: Tensor, bits: int, bucket: int, norm: Norm, key: int, base: int) -> tuple[Tensor, Tensor]:
    """NUQSGD: levels that are powers of two; codes [n] and scale bytes."""
    return _symbols("exponential", x, _NO_LEVELS, bits, bucket, norm, key, base)


def exponential_encoder(x: Tensor, bits: int, bucket: int, norm: Norm, key: int, base: int, ranks: int = 1) -> Coder:
    """NUQSGD straight into a message."""
    return _encoder("exponential", x, _NO_LEVELS, bits, bucket, norm, key, base, ranks)


def exponential_decoder(bits: int, bucket: int, out: Tensor, add: bool, negated: bool = False) -> Coder:
    """NUQSGD straight from a message."""
    return _decoder("exponential", _NO_LEVELS, bits, bucket, out, add, negated)


def exponential_dequantise(symbols: Tensor, scales: Tensor, bits: int, bucket: int, out: Tensor, add: bool) -> None:
    """NUQSGD from plain codes."""
    _dequantise("exponential", symbols, scales, _NO_LEVELS, bits, bucket, out, add)


def levels_symbols(
    x: Tensor, levels: Tensor, bits: int, bucket: int, norm: Norm, key: int, base: int
) -> tuple[Tensor, Tensor]:
    """Any rising table of magnitudes; codes [n] and scale bytes."""
    return _symbols("levels", x, levels, bits, bucket, norm, key, base)


def levels_encoder(
    x: Tensor, levels: Tensor, bits: int, bucket: int, norm: Norm, key: int, base: int, ranks: int = 1
) -> Coder:
    """A table of levels straight into a message."""
    return _encoder("levels", x, levels, bits, bucket, norm, key, base, ranks)


def levels_decoder(levels: Tensor, bits: int, bucket: int, out: Tensor, add: bool, negated: bool = False) -> Coder:
    """A table of levels straight from a message."""
    return _decoder("levels", levels, bits, bucket, out, add, negated)


def levels_dequantise(
    symbols: Tensor, scales: Tensor, levels: Tensor, bits: int, bucket: int, out: Tensor, add: bool
) -> None:
    """A table of levels from plain codes."""
    _dequantise("levels", symbols, scales, levels, bits, bucket, out, add)


def sign_symbols(x: Tensor, bucket: int) -> tuple[Tensor, Tensor]:
    """1-bit SGD: codes [n] and the two means of each bucket, 8 bytes."""
    return _symbols("sign", x, _NO_LEVELS, 1, bucket, "max", 0, 0)


def sign_encoder(x: Tensor, bucket: int) -> Coder:
    """1-bit SGD straight into a message."""
    return _encoder("sign", x, _NO_LEVELS, 1, bucket, "max", 0, 0)


def sign_decoder(bucket: int, out: Tensor, add: bool, negated: bool = False) -> Coder:
    """1-bit SGD straight from a message."""
    return _decoder("sign", _NO_LEVELS, 1, bucket, out, add, negated)


def sign_dequantise(symbols: Tensor, scales: Tensor, bucket: int, out: Tensor, add: bool) -> None:
    """1-bit SGD from plain codes."""
    _dequantise("sign", symbols, scales, _NO_LEVELS, 1, bucket, out, add)


def clip_to_sigma(x: Tensor, bucket: int, factor: float) -> Tensor:
    """x with each bucket clamped to +- factor * sigma, sigma being its root mean square."""
    _check_data(x)
    if bucket < 1 or not factor > 0:
        raise CodecError(f"clipping needs a bucket of at least 1 and a factor above 0, not {bucket} and {factor}")
    x = x.detach()
    native = native_for(x)
    if native is None:
        return reference.clip_to_sigma(x, bucket, factor)
    clipped = torch.empty_like(x)
    native.clip_to_sigma(x, bucket, float(factor), clipped)
    return clipped
