"""Numbers as bins of their own distribution, and block floats with a shared exponent."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.core.context import Context
from thinwire.core.fast import MessageCoder
from thinwire.core.options import number
from thinwire.core.source import Source
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import Encoded, WireCoder
from thinwire.errors import CodecError, WireError
from thinwire.kernels import blockfloat, codebook
from thinwire.kernels.modes import Mode
from thinwire.kernels.packing import pack, unpack
from thinwire.kernels.quantise import RangeCoder


@dataclass(frozen=True, repr=False)
class Codebook(WireCoder):
    """2^bits equal bins over `sigmas` standard deviations around the mean of a message; a bin decodes to its mean.

    The means travel with the message. What lies beyond the ends belongs to the first and the last bin. A bin's mean
    is the level of least squared error for it, so that sums are kept: the mean of the message decodes to itself.
    Biased; error feedback keeps the rest. With bits=2 and sigmas=6 the values of SparseLoCo (Sarfi et al. 2025),
    with bits=8 and sigmas=12 those of INTELLECT-1 (Jaghouar et al. 2024).
    """

    name: ClassVar[str] = "codebook"
    shown: ClassVar[tuple[str, ...]] = ("bits",)

    bits: int = number(2, low=2, high=8, whole=True, help="bits of a number")
    sigmas: float = number(6.0, low=0.1, high=100.0, help="standard deviations that the bins cover together")

    def side(self, spec: Spec) -> Size:
        return Size(4 * 2**self.bits)

    def out(self, spec: Spec) -> Spec:
        return spec.symbols(self.bits, signed=False)

    def encode(self, x: Tensor, ctx: Context) -> Encoded:
        codes, levels = codebook.quantise(x, self.bits, self.sigmas)
        return Encoded(codes, levels.view(torch.uint8))

    def decode(self, encoded: Encoded, ctx: Context, out: Tensor, mode: Mode = "write") -> None:
        codebook.dequantise(encoded.values, self.levels(encoded.side), out, mode)

    def levels(self, side: Tensor | None) -> Tensor:
        """The levels of a message, checked: all finite, or all NaN where the numbers were not finite."""
        if side is None or side.numel() != 4 * 2**self.bits:
            raise WireError(f"a {self} message has {2**self.bits} levels of four bytes; resend it.")
        levels = side.clone().view(torch.float32)
        if not bool(torch.isfinite(levels).all() | torch.isnan(levels).all()):
            raise WireError(f"a {self} message has levels that are not finite, which no encoder writes; resend it.")
        return levels


@dataclass(frozen=True, repr=False)
class MX(WireCoder):
    """Block floats: 32 numbers share a power of two, each is a float of 4, 6 or 8 bits (E2M1, E2M3, E4M3).

    The formats of the OCP Microscaling standard: the shared exponent is that of the block's largest magnitude less
    that of the largest short float; numbers are rounded to the nearest, ties to even, and cut off at the largest.
    bits + 1/4 bits a number. Biased; error feedback keeps the rest. Rouhani et al. 2023.
    """

    name: ClassVar[str] = "mx"
    shown: ClassVar[tuple[str, ...]] = ("bits",)

    bits: int = number(4, low=4, high=8, whole=True, help="bits of a number: 4, 6 or 8")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits not in blockfloat.FORMATS:
            raise CodecError(f"{self}: bits must be 4, 6 or 8, the widths of the standard.")

    def side(self, spec: Spec) -> Size:
        return Size(blockfloat.exponent_bytes(spec.numel))

    def out(self, spec: Spec) -> Spec:
        return spec.symbols(self.bits, signed=True)

    def encode(self, x: Tensor, ctx: Context) -> Encoded:
        exponents, symbols = blockfloat.block_encode(x, self.bits)
        return Encoded(symbols, exponents)

    def decode(self, encoded: Encoded, ctx: Context, out: Tensor, mode: Mode = "write") -> None:
        side = encoded.side if encoded.side is not None else encoded.values.new_empty(0)
        blockfloat.block_decode(encoded.values, side, self.bits, out, mode)

    def fast(self, spec: Spec) -> MessageCoder:
        return BlockMessages(self.bits)


class BlockMessages(MessageCoder):
    """Exponents and packed symbols straight into and out of a message."""

    split = blockfloat.LENGTH

    def __init__(self, bits: int) -> None:
        self.bits = bits

    def writer(self, x: Source, ctx: Context) -> RangeCoder:
        def write(low: int, high: int, message: Tensor) -> None:
            exponents, symbols = blockfloat.block_encode(x.range(low, high), self.bits)
            message[: exponents.numel()] = exponents
            message[exponents.numel() :] = pack(symbols, self.bits)

        return write

    def reader(self, ctx: Context, out: Tensor, mode: Mode) -> RangeCoder:
        def read(low: int, high: int, message: Tensor) -> None:
            size = blockfloat.exponent_bytes(high - low)
            symbols = unpack(message[size:], high - low, self.bits)
            blockfloat.block_decode(symbols, message[:size], self.bits, out[low:high], mode)

        return read
