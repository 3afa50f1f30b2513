"""The bucketed quantisers, compiled where possible; `reference.quantise` says what they compute."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from thinwire.errors import CodecError, WireError
from thinwire.kernels.gpu import gpu_for
from thinwire.kernels.gpu.layouts import Layout
from thinwire.kernels.modes import Mode
from thinwire.kernels.native import native_for, threads_for
from thinwire.kernels.packing import check_symbols, packed_size, unpack
from thinwire.kernels.reference import quantise as reference
from thinwire.kernels.reference.quantise import Norm, bucket_count
from thinwire.kernels.shares import check_ranks, divided

RangeCoder: TypeAlias = Callable[[int, int, Tensor], None]  # the first element, the one after the last, their message
Kind: TypeAlias = Literal["uniform", "exponential", "levels", "sign"]

__all__ = ["Kind", "Norm", "RangeCoder", "Scheme", "bucket_count", "clip_to_sigma", "fixed_scheme", "packed_size"]

_NO_LEVELS = torch.empty(0)
_MASK32, _MASK64 = 2**32 - 1, 2**64 - 1  # keys and positions wrap around, as in the reference


@dataclass(frozen=True, eq=False)
class Scheme:
    """How elements become codes of `bits` bits, with one scale for each `bucket` of consecutive elements.

    uniform      QSGD: equally spaced levels
    exponential  NUQSGD: levels that are powers of two
    levels       any rising table of magnitudes, `levels`
    sign         1-bit SGD: the sign, and the means of a bucket's negative and other elements

    A message is the scales, then the packed codes; it may lie at any address. `key` and `base` (the position of
    element 0) fix the random draws.
    """

    kind: Kind
    bits: int
    bucket: int
    norm: Norm = "max"
    levels: Tensor = _NO_LEVELS

    def __post_init__(self) -> None:
        if self.bucket < 1:
            raise CodecError(f"a bucket holds at least one element, not {self.bucket}")
        if self.kind != "sign" and not 2 <= self.bits <= 8:
            raise CodecError(f"codes with a sign have 2 to 8 bits, not {self.bits}; choose bits in that range")
        if self.norm not in ("max", "l2"):
            raise CodecError(f"the norm of a bucket is 'max' or 'l2', not {self.norm!r}")
        if self.kind == "levels":
            check_levels(self.levels, self.bits)

    def scale_bytes(self, numel: int) -> int:
        """Bytes of the scales of so many elements."""
        return _message_bytes(self.kind, self.bits, self.bucket, numel)[0]

    def symbols(self, x: Tensor, key: int = 0, base: int = 0) -> tuple[Tensor, Tensor]:
        """One code an element, [n], and the scales as bytes."""
        _check_data(x)
        x, n = x.detach(), x.numel()
        if (gpu := gpu_for(self.kind, *self._given(x))) is not None and self._layout.fits(n):
            codes = gpu.quantise.room_for(n, x.device)
            scales = torch.empty(self.scale_bytes(n), dtype=torch.uint8, device=x.device)
            gpu.quantise.encode(self._layout, x, 1, key, base, scales, codes, False)
            return codes[:n], scales
        native = native_for(x, self.levels)
        if native is None:
            return self.reference_symbols(x, key, base)
        symbols, scales = torch.empty(n, dtype=torch.uint8), torch.empty(self.scale_bytes(n), dtype=torch.uint8)
        native.quantise_symbols(
            self.kind, x.data_ptr(), n, *self._table, 1, self.bits, self.bucket, self.norm == "l2",
            key & _MASK64, base & _MASK32, scales.data_ptr(), symbols.data_ptr(), threads_for(n),
        )  # fmt: skip
        return symbols, scales

    def dequantise(self, symbols: Tensor, scales: Tensor, out: Tensor, mode: Mode = "write") -> None:
        """The elements of plain codes."""
        _check_data(out)
        n = out.numel()
        self._check_scales(scales, n)
        check_symbols(symbols, self.bits)
        if symbols.numel() != n:
            raise WireError(f"{n} elements need as many symbols, but {symbols.numel()} came")
        if (gpu := gpu_for(self.kind, *self._given(out), symbols, scales)) is not None:
            gpu.quantise.decode(self._layout, scales, symbols, out, False, mode != "write", mode == "subtract")
            return
        native = native_for(symbols, scales, self.levels, out)
        if native is not None:
            native.quantise_dequantise(
                self.kind, scales.data_ptr(), symbols.data_ptr(), *self._table, self.bits, self.bucket,
                out.data_ptr(), n, mode != "write", mode == "subtract", threads_for(n),
            )  # fmt: skip
            return
        if mode == "subtract":
            scales = scales.clone().view(torch.float32).neg().view(torch.uint8)
        self.reference_dequantise(symbols, scales, out, mode != "write")

    def encoder(self, x: Tensor, key: int = 0, base: int = 0, ranks: int = 1) -> RangeCoder:
        """What will write ranges of x / ranks as messages; the elements of x may come later.

        A share of a mean need not be written down first.
        """
        check_ranks(ranks)
        _check_data(x)
        kind, bits, bucket, l2, table = self.kind, self.bits, self.bucket, self.norm == "l2", self._table
        native, at, end, key, x = native_for(x, self.levels), x.data_ptr(), x.numel(), key & _MASK64, x.detach()

        def encode(low: int, high: int, message: Tensor) -> None:
            n = _check_range(low, high, end)
            scales = self._check_message(message, n)
            if native is not None and message.is_cpu and message.is_contiguous():
                to = message.data_ptr()
                native.quantise_encode(
                    kind, at + 4 * low, n, *table, ranks, bits, bucket, l2, key, base + low & _MASK32, to, to + scales,
                    threads_for(n),
                )  # fmt: skip
                return
            if (gpu := gpu_for(self.kind, *self._given(x), message)) is not None and self._layout.fits(n):
                place = message[:scales], message[scales:]
                gpu.quantise.encode(self._layout, x[low:high], ranks, key, base + low, *place, True)
                return
            share = x[low:high] if ranks == 1 else divided(x[low:high], ranks)
            coded = self.reference_symbols(share, key, base + low)
            reference.pack_into(*coded, bits, message[:scales], message[scales:])

        return encode

    def decoder(self, out: Tensor, mode: Mode = "write") -> RangeCoder:
        """What will read messages into ranges of `out`."""
        _check_data(out)
        native, at, end = native_for(self.levels, out), out.data_ptr(), out.numel()
        kind, fixed = self.kind, (*self._table, self.bits, self.bucket)
        add, negated = mode != "write", mode == "subtract"

        def decode(low: int, high: int, message: Tensor) -> None:
            n = _check_range(low, high, end)
            scales = self._check_message(message, n)
            if native is not None and message.is_cpu and message.is_contiguous():
                data = message.data_ptr()
                native.quantise_decode(kind, data, data + scales, *fixed, at + 4 * low, n, add, negated, threads_for(n))
            elif (gpu := gpu_for(self.kind, *self._given(out), message)) is not None:
                place = message[:scales], message[scales:]
                gpu.quantise.decode(self._layout, *place, out[low:high], True, add, negated)
            else:
                self.dequantise(unpack(message[scales:], n, self.bits), message[:scales], out[low:high], mode)

        return decode

    @cached_property
    def _table(self) -> tuple[int, int]:
        return self.levels.data_ptr(), self.levels.numel()

    @cached_property
    def _layout(self) -> Layout:
        return Layout(self.kind, self.bits, self.bucket, self.norm == "l2", self.levels)

    def _given(self, x: Tensor) -> tuple[Tensor, ...]:
        """What the kernels of a GPU get of x and of the scheme; only tables of levels lie on the device."""
        return (x, self.levels) if self.kind == "levels" else (x,)

    def _check_message(self, message: Tensor, numel: int) -> int:
        """Bytes of the scales, which come first."""
        scales, size = _message_bytes(self.kind, self.bits, self.bucket, numel)
        if message.dtype != torch.uint8 or message.numel() != size:
            raise WireError(
                f"{numel} elements of {self.bits} bits in buckets of {self.bucket} are {size} bytes, but"
                f" {message.numel()} of {message.dtype} came; the message is truncated or of another codec"
            )
        return scales

    def _check_scales(self, scales: Tensor, numel: int) -> None:
        size = self.scale_bytes(numel)
        if scales.dtype != torch.uint8 or scales.numel() != size:
            raise WireError(
                f"{numel} elements in buckets of {self.bucket} have {size} bytes of scales, but {scales.numel()} of"
                f" {scales.dtype} came; the message is truncated or of another codec"
            )

    def reference_symbols(self, x: Tensor, key: int, base: int) -> tuple[Tensor, Tensor]:
        """`symbols` by the reference, whatever else there is."""
        if self.kind == "sign":
            return reference.sign_symbols(x, self.bucket)
        if self.kind == "levels":
            return reference.levels_symbols(x, self.levels, self.bits, self.bucket, self.norm, key, base)
        symbols = reference.uniform_symbols if self.kind == "uniform" else reference.exponential_symbols
        return symbols(x, self.bits, self.bucket, self.norm, key, base)

    def reference_dequantise(self, symbols: Tensor, scales: Tensor, out: Tensor, add: bool) -> None:
        """`dequantise` by the reference."""
        if self.kind == "sign":
            reference.sign_dequantise(symbols, scales, self.bucket, out, add)
        elif self.kind == "levels":
            reference.levels_dequantise(symbols, scales, self.levels, self.bits, self.bucket, out, add)
        else:
            uniform = self.kind == "uniform"
            dequantise = reference.uniform_dequantise if uniform else reference.exponential_dequantise
            dequantise(symbols, scales, self.bits, self.bucket, out, add)


@lru_cache(maxsize=1024)
def fixed_scheme(kind: Kind, bits: int, bucket: int, norm: Norm = "max") -> Scheme:
    """A scheme without a table of levels; it is asked for with every message."""
    return Scheme(kind, bits, bucket, norm)


@lru_cache(maxsize=4096)
def _message_bytes(kind: Kind, bits: int, bucket: int, numel: int) -> tuple[int, int]:
    """Bytes of the scales of so many elements, and of the whole message."""
    scales = (8 if kind == "sign" else 4) * bucket_count(numel, bucket)
    return scales, scales + packed_size(numel, bits)


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


def _check_range(low: int, high: int, end: int) -> int:
    """How many elements lie in it."""
    if not 0 <= low <= high <= end:
        raise CodecError(f"elements {low} to {high} are not among {end}")
    return high - low


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
