"""N-bit floats fitted to the range of the data."""

import struct
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, cast

import torch
from torch import Tensor

from thinwire.core.options import choice, number
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import Encoded, Scene, Stage
from thinwire.errors import CodecError, WireError
from thinwire.kernels import rangefloat
from thinwire.kernels.rangefloat import RangeGrid

_NOT_FINITE = 0xFF
_SAMPLE = 1 << 14  # numbers on which a mantissa is chosen


class _Header(NamedTuple):
    """Mantissa bits and range, as a message carries them; a mantissa of 0xFF marks non-finite data."""

    mantissa: int
    minimum: float
    maximum: float


@dataclass(frozen=True, repr=False)
class RangeFloat(Stage):
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

    def encode(self, x: Tensor, scene: Scene) -> Encoded:
        header = self._measure(x)
        if header.mantissa == _NOT_FINITE:
            dtype = torch.uint8 if self.bits <= 8 else torch.int32
            return Encoded(torch.zeros(x.numel(), dtype=dtype, device=x.device), self._side_bytes(header, x.device))
        grid = self._grid(header)
        rounding = cast(Literal["nearest", "stochastic"], self.rounding)
        symbols, saturated = rangefloat.rangefloat_symbols(
            x, self.bits, header.mantissa, grid, rounding, scene.key(), scene.base
        )
        scene.count("saturated", saturated)
        return Encoded(symbols, self._side_bytes(header, x.device))

    def decode(self, encoded: Encoded, scene: Scene, out: Tensor, add: bool = False) -> None:
        header = self._read(encoded.side)
        if header.mantissa == _NOT_FINITE:
            out.fill_(float("nan"))
        else:
            rangefloat.rangefloat_dequantise(encoded.values, self.bits, header.mantissa, self._grid(header), out, add)

    def encode_into(self, x: Tensor, scene: Scene, message: Tensor) -> bool:
        header = self._measure(x)
        side = int(self.side(scene.spec))
        message[:side] = self._side_bytes(header, x.device)
        if header.mantissa == _NOT_FINITE:
            message[side:].zero_()
            return True
        rounding = cast(Literal["nearest", "stochastic"], self.rounding)
        saturated = rangefloat.rangefloat_encode(
            x, self.bits, header.mantissa, self._grid(header), rounding, scene.key(), scene.base, message[side:]
        )
        scene.count("saturated", saturated)
        return True

    def decode_from(self, message: Tensor, scene: Scene, out: Tensor, add: bool) -> bool:
        side = int(self.side(scene.spec))
        header = self._read(message[:side])
        if header.mantissa == _NOT_FINITE:
            out.fill_(float("nan"))
        else:
            rangefloat.rangefloat_decode(message[side:], self.bits, header.mantissa, self._grid(header), out, add)
        return True

    def _measure(self, x: Tensor) -> _Header:
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

    def _grid(self, header: _Header) -> RangeGrid:
        return rangefloat.rangefloat_grid(self.bits, header.mantissa, header.minimum, header.maximum)

    def _side_bytes(self, header: _Header, device: torch.device) -> Tensor:
        data = struct.pack("<B", header.mantissa)
        if self.minimum is None:
            data += struct.pack("<ff", header.minimum, header.maximum)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)

    def _read(self, side: Tensor | None) -> _Header:
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
