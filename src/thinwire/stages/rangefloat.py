"""N-bit floats fitted to the range of the data."""

import struct
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, cast

import torch
from torch import Tensor

from thinwire.core.context import Context
from thinwire.core.fast import MessageCoder
from thinwire.core.options import choice, number
from thinwire.core.source import Source
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import Encoded, WireCoder
from thinwire.errors import CodecError, WireError
from thinwire.kernels import rangefloat
from thinwire.kernels.modes import Mode
from thinwire.kernels.quantise import RangeCoder
from thinwire.kernels.rangefloat import RangeGrid

_NOT_FINITE = 0xFF
_SAMPLE = 1 << 14  # numbers on which a mantissa is chosen


class _Header(NamedTuple):
    """Mantissa bits and range, as a message carries them; a mantissa of 0xFF marks non-finite data."""

    mantissa: int
    minimum: float
    maximum: float


@dataclass(frozen=True, repr=False)
class RangeFloat(WireCoder):
    """A float of `bits` bits with `mantissa` of them, whose codes cover just [min, max] of the data.

    Code points are consecutive keys bits(|x|) >> (23 - m), counted from the smallest magnitude that still has
    a code; the relative error is at most 2^-(m+1) above it. The range is taken from the data and sent with the
    message, or frozen by `minimum` and `maximum`; values beyond a frozen range saturate and are counted
    (`saturated` in a slot's notes). Without `mantissa` the one with the least error on a sample is used.
    Wang et al., HPDC 2020.
    """

    name: ClassVar[str] = "rangefloat"
    shown: ClassVar[tuple[str, ...]] = ("bits",)

    bits: int = number(8, low=4, high=16, whole=True, help="bits of a number")
    mantissa: int | None = number(
        None, low=0, high=13, whole=True, optional=True, help="mantissa bits; none: chosen on the data"
    )
    rounding: str = choice("nearest", "nearest", "stochastic", help="stochastic is unbiased")
    minimum: float | None = number(None, low=-3e38, high=0, optional=True, help="frozen lower end of the range")
    maximum: float | None = number(None, low=0, high=3e38, optional=True, help="frozen upper end of the range")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mantissa is not None and self.mantissa > self.bits - 3:
            raise CodecError(
                f"{self}: {self.bits} bits leave room for {self.bits - 3} bits of mantissa beside sign and exponent."
            )
        if (self.minimum is None) != (self.maximum is None):
            raise CodecError(f"{self}: a frozen range needs both minimum and maximum.")

    @property
    def unbiased(self) -> bool:
        return self.rounding == "stochastic" and self.minimum is None

    def side(self, spec: Spec) -> Size:
        return Size(9 if self.minimum is None else 1)

    def out(self, spec: Spec) -> Spec:
        return spec.symbols(self.bits, signed=False)

    def encode(self, x: Tensor, ctx: Context) -> Encoded:
        header = self.measure(x)
        if header.mantissa == _NOT_FINITE:
            dtype = torch.uint8 if self.bits <= 8 else torch.int32
            return Encoded(torch.zeros(x.numel(), dtype=dtype, device=x.device), self.side_bytes(header, x.device))
        grid = self.grid(header)
        rounding = cast(Literal["nearest", "stochastic"], self.rounding)
        symbols, saturated = rangefloat.rangefloat_symbols(
            x, self.bits, header.mantissa, grid, rounding, ctx.key(), ctx.base
        )
        ctx.count("saturated", saturated)
        return Encoded(symbols, self.side_bytes(header, x.device))

    def decode(self, encoded: Encoded, ctx: Context, out: Tensor, mode: Mode = "write") -> None:
        header = self.read(encoded.side)
        if mode == "subtract":
            self.decode(encoded, ctx, values := ctx.empty(out.numel(), out))
            out.sub_(values)
        elif header.mantissa == _NOT_FINITE:
            out.fill_(float("nan"))
        else:
            grid = self.grid(header)
            rangefloat.rangefloat_dequantise(encoded.values, self.bits, header.mantissa, grid, out, mode == "add")

    def fast(self, spec: Spec) -> MessageCoder:
        return RangeFloatMessages(self, int(self.side(spec)))

    def measure(self, x: Tensor) -> _Header:
        """Range and mantissa for these numbers."""
        if x.numel() == 0:
            return _Header(self.mantissa or 0, 0.0, 0.0)
        low, high = (float(end) for end in torch.aminmax(x))
        if not (low - low == 0 and high - high == 0):
            return _Header(_NOT_FINITE, 0.0, 0.0)
        if self.minimum is not None and self.maximum is not None:
            low, high = self.minimum, self.maximum
        mantissa = self.mantissa
        if mantissa is None:
            mantissa = rangefloat.rangefloat_choose_mantissa(x[:: max(1, x.numel() // _SAMPLE)].contiguous(), self.bits)
        return _Header(mantissa, min(low, 0.0), max(high, 0.0))

    def grid(self, header: _Header) -> RangeGrid:
        return rangefloat.rangefloat_grid(self.bits, header.mantissa, header.minimum, header.maximum)

    def side_bytes(self, header: _Header, device: torch.device) -> Tensor:
        data = struct.pack("<B", header.mantissa)
        if self.minimum is None:
            data += struct.pack("<ff", header.minimum, header.maximum)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)

    def read(self, side: Tensor | None) -> _Header:
        """The header of a message, checked."""
        data = bytes(side.tolist()) if side is not None else b""
        if self.minimum is not None and self.maximum is not None:
            header = _Header(data[0], self.minimum, self.maximum)
        else:
            header = _Header(*struct.unpack("<Bff", data))
        if header.mantissa == _NOT_FINITE:
            return header
        low, high = header.minimum, header.maximum
        if header.mantissa > self.bits - 3 or not (low <= 0.0 <= high and low - low == 0 and high - high == 0):
            raise WireError(
                f"a {self} message has {header.mantissa} bits of mantissa and the range [{low}, {high}],"
                " which no encoder writes."
            )
        return header


class RangeFloatMessages(MessageCoder):
    """Header and packed codes straight into and out of a message."""

    def __init__(self, stage: RangeFloat, side: int) -> None:
        self.stage, self.side = stage, side

    def writer(self, x: Source, ctx: Context) -> RangeCoder:
        rounding = cast(Literal["nearest", "stochastic"], self.stage.rounding)

        def write(low: int, high: int, message: Tensor) -> None:
            values = x.range(low, high)
            header = self.stage.measure(values)
            message[: self.side] = self.stage.side_bytes(header, values.device)
            payload = message[self.side :]
            if header.mantissa == _NOT_FINITE:
                payload.zero_()
                return
            grid, key, base = self.stage.grid(header), ctx.key(), ctx.base + low
            bits, mantissa = self.stage.bits, header.mantissa
            saturated = rangefloat.rangefloat_encode(values, bits, mantissa, grid, rounding, key, base, payload)
            ctx.count("saturated", saturated)

        return write

    def reader(self, ctx: Context, out: Tensor, mode: Mode) -> RangeCoder:
        def read(low: int, high: int, message: Tensor) -> None:
            header = self.stage.read(message[: self.side])
            here = ctx.empty(high - low, out) if mode == "subtract" else out[low:high]
            if header.mantissa == _NOT_FINITE:
                here.fill_(float("nan"))
            else:
                grid, bits = self.stage.grid(header), self.stage.bits
                rangefloat.rangefloat_decode(message[self.side :], bits, header.mantissa, grid, here, mode == "add")
            if mode == "subtract":
                out[low:high].sub_(here)

        return read
