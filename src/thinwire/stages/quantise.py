"""Stochastic quantisers with one scale for each bucket: QSGD, NUQSGD, TernGrad, and 1-bit SGD."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor

from thinwire.core.options import choice, number
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import NEAR_OVERFLOW, Encoded, Scene, Stage
from thinwire.kernels import quantise
from thinwire.kernels.quantise import Coder
from thinwire.kernels.shares import magnitude_in

Norm = Literal["max", "l2"]


@dataclass(frozen=True, repr=False)
class Bucketed(Stage):
    """Symbols of a few bits, and `scale_bytes` of side information for each bucket of consecutive numbers.

    A quantiser says how numbers become symbols and back, and how both are done straight into and from messages.
    """

    scale_bytes: ClassVar[int] = 4
    signed: ClassVar[bool] = True

    def width(self) -> int:
        raise NotImplementedError

    def buckets(self, spec: Spec) -> int:
        """Numbers in one bucket."""
        raise NotImplementedError

    def side(self, spec: Spec) -> Size:
        return Size(self._scales(spec))

    def _scales(self, spec: Spec) -> int:
        """Bytes of them."""
        return -(-spec.numel // self.buckets(spec)) * self.scale_bytes

    def out(self, spec: Spec) -> Spec:
        return spec.symbols(self.width(), self.signed)

    def seam(self, spec: Spec) -> int:
        """Whole buckets, in whole bytes."""
        return math.lcm(self.buckets(spec), 8)

    def encode(self, x: Tensor, scene: Scene) -> Encoded:
        symbols, scales = self.quantise(x, scene)
        return Encoded(symbols, scales)

    def decode(self, encoded: Encoded, scene: Scene, out: Tensor, add: bool = False) -> None:
        side = encoded.side if encoded.side is not None else encoded.values.new_empty(0)
        self.dequantise(encoded.values, side, scene, out, add)

    def encode_into(self, x: Tensor, scene: Scene, message: Tensor) -> bool:
        self.writer(x, scene)(0, x.numel(), message)
        return True

    def decode_from(self, message: Tensor, scene: Scene, out: Tensor, add: bool) -> bool:
        self.reader(scene, out, add)(0, out.numel(), message)
        return True

    def take_off(self, message: Tensor, scene: Scene, y: Tensor) -> bool:
        self.reader(scene, y, add=True, negated=True)(0, y.numel(), message)
        return True

    def tells_finite(self, message: Tensor, scene: Scene) -> bool | None:
        """No number is larger than the scale of its bucket, but for rounding."""
        largest = magnitude_in(message, self._scales(scene.spec) // 4)
        return largest < math.inf if largest < NEAR_OVERFLOW or largest == math.inf else None

    def quantise(self, x: Tensor, scene: Scene) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def dequantise(self, symbols: Tensor, scales: Tensor, scene: Scene, out: Tensor, add: bool) -> None:
        raise NotImplementedError

    def writer(self, x: Tensor, scene: Scene) -> Coder:
        raise NotImplementedError

    def reader(self, scene: Scene, out: Tensor, add: bool, negated: bool = False) -> Coder:
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class QSGD(Bucketed):
    """Uniform levels: |x| / scale is rounded at random to one of the multiples of 1/s around it, s = 2^(bits-1) - 1.

    E[Q(x)] = x. With the L2 norm E|Q(x) - x|^2 <= min(n/s^2, sqrt(n)/s) |x|^2 for a bucket of n; with the
    largest magnitude (QSGDinf) <= n max|x|^2 / (4 s^2), far less in practice. Alistarh et al., NIPS 2017.
    """

    name: ClassVar[str] = "qsgd"
    divides: ClassVar[bool] = True
    shown: ClassVar[tuple[str, ...]] = ("bits",)

    bits: int = number(4, low=2, high=8, whole=True, help="bits of a number, one of them its sign")
    norm: str = choice("max", "max", "l2", help="what a bucket is scaled by")
    bucket: int = number(512, low=1, high=2**30, whole=True, help="numbers that share a scale")

    @property
    def unbiased(self) -> bool:
        return True

    def width(self) -> int:
        return self.bits

    def buckets(self, spec: Spec) -> int:
        return self.bucket

    def quantise(self, x: Tensor, scene: Scene) -> tuple[Tensor, Tensor]:
        return quantise.uniform_symbols(x, self.bits, self.bucket, cast(Norm, self.norm), scene.key(), scene.base)

    def dequantise(self, symbols: Tensor, scales: Tensor, scene: Scene, out: Tensor, add: bool) -> None:
        quantise.uniform_dequantise(symbols, scales, self.bits, self.bucket, out, add)

    def writer(self, x: Tensor, scene: Scene) -> Coder:
        norm, key = cast(Norm, self.norm), scene.key()
        return quantise.uniform_encoder(x, self.bits, self.bucket, norm, key, scene.base, scene.divisor)

    def reader(self, scene: Scene, out: Tensor, add: bool, negated: bool = False) -> Coder:
        return quantise.uniform_decoder(self.bits, self.bucket, out, add, negated)


@dataclass(frozen=True, repr=False)
class NUQSGD(Bucketed):
    """Exponential levels 0, p^S, ..., p, 1 with S = 2^(bits-1) - 2: fine where most gradients are, near zero.

    E[Q(x)] = x, and for p = 1/2 and a bucket of d numbers E|Q(x) - x|^2 <= e |x|^2 with the L2 norm, where
    e = 1/8 + d 2^(-2S-2) if d < 2^(2S+2), else 2^-S sqrt(d) - 7/8. With the largest magnitude as scale the
    levels reach further down still. Ramezani-Kebrya et al., JMLR 22(114), 2021.
    """

    name: ClassVar[str] = "nuqsgd"
    divides: ClassVar[bool] = True
    shown: ClassVar[tuple[str, ...]] = ("bits",)

    bits: int = number(4, low=2, high=8, whole=True, help="bits of a number, one of them its sign")
    norm: str = choice("l2", "l2", "max", help="what a bucket is scaled by")
    bucket: int = number(512, low=1, high=2**30, whole=True, help="numbers that share a scale")
    base: float = number(0.5, low=0.05, high=0.95, help="ratio p of one level to the next")

    @property
    def unbiased(self) -> bool:
        return True

    def width(self) -> int:
        return self.bits

    def buckets(self, spec: Spec) -> int:
        return self.bucket

    def quantise(self, x: Tensor, scene: Scene) -> tuple[Tensor, Tensor]:
        key, base, norm = scene.key(), scene.base, cast(Norm, self.norm)
        if self.base == 0.5:
            return quantise.exponential_symbols(x, self.bits, self.bucket, norm, key, base)
        levels = exponential_levels(self.base, self.bits).to(x.device)
        return quantise.levels_symbols(x, levels, self.bits, self.bucket, norm, key, base)

    def dequantise(self, symbols: Tensor, scales: Tensor, scene: Scene, out: Tensor, add: bool) -> None:
        if self.base == 0.5:
            quantise.exponential_dequantise(symbols, scales, self.bits, self.bucket, out, add)
        else:
            levels = exponential_levels(self.base, self.bits).to(out.device)
            quantise.levels_dequantise(symbols, scales, levels, self.bits, self.bucket, out, add)

    def writer(self, x: Tensor, scene: Scene) -> Coder:
        key, base, norm = scene.key(), scene.base, cast(Norm, self.norm)
        if self.base == 0.5:
            return quantise.exponential_encoder(x, self.bits, self.bucket, norm, key, base, scene.divisor)
        levels = exponential_levels(self.base, self.bits).to(x.device)
        return quantise.levels_encoder(x, levels, self.bits, self.bucket, norm, key, base, scene.divisor)

    def reader(self, scene: Scene, out: Tensor, add: bool, negated: bool = False) -> Coder:
        if self.base == 0.5:
            return quantise.exponential_decoder(self.bits, self.bucket, out, add, negated)
        levels = exponential_levels(self.base, self.bits).to(out.device)
        return quantise.levels_decoder(levels, self.bits, self.bucket, out, add, negated)


@lru_cache(maxsize=64)
def exponential_levels(base: float, bits: int) -> Tensor:
    """0, p^S, ..., p, 1 as fp32."""
    top = 2 ** (bits - 1) - 2
    return torch.tensor([0.0] + [base**j for j in range(top, -1, -1)], dtype=torch.float32)


@dataclass(frozen=True, repr=False)
class Ternary(Bucketed):
    """TernGrad: scale * sign(x) with probability |x| / scale, else 0; the scale is the bucket's largest magnitude.

    `clip` first limits a bucket to that many standard deviations (2.5 in the paper), which makes the scale
    smaller and the result biased. Wen et al., NIPS 2017.
    """

    name: ClassVar[str] = "ternary"

    clip: float | None = number(
        None, low=0.1, high=100, optional=True, help="standard deviations to clip at; none: no clipping"
    )
    bucket: int = number(512, low=1, high=2**30, whole=True, help="numbers that share a scale")

    @property
    def unbiased(self) -> bool:
        return self.clip is None

    def width(self) -> int:
        return 2

    def buckets(self, spec: Spec) -> int:
        return self.bucket

    def _clipped(self, x: Tensor) -> Tensor:
        return x if self.clip is None else quantise.clip_to_sigma(x, self.bucket, self.clip)

    def quantise(self, x: Tensor, scene: Scene) -> tuple[Tensor, Tensor]:
        return quantise.uniform_symbols(self._clipped(x), 2, self.bucket, "max", scene.key(), scene.base)

    def dequantise(self, symbols: Tensor, scales: Tensor, scene: Scene, out: Tensor, add: bool) -> None:
        quantise.uniform_dequantise(symbols, scales, 2, self.bucket, out, add)

    def writer(self, x: Tensor, scene: Scene) -> Coder:
        key, base = scene.key(), scene.base
        if self.clip is None:
            return quantise.uniform_encoder(x, 2, self.bucket, "max", key, base)

        def encode(low: int, high: int, message: Tensor) -> None:
            clipped = self._clipped(x[low:high])
            quantise.uniform_encoder(clipped, 2, self.bucket, "max", key, base + low)(0, high - low, message)

        return encode

    def reader(self, scene: Scene, out: Tensor, add: bool, negated: bool = False) -> Coder:
        return quantise.uniform_decoder(2, self.bucket, out, add, negated)


@dataclass(frozen=True, repr=False)
class Sign(Bucketed):
    """1-bit SGD: the sign of each number, and for each bucket (or row) the means of its negative and other numbers.

    The two means minimise the squared error for these bits. Biased; error feedback is essential. With `by=row`
    a bucket is a row of the weight, as in the paper. Seide et al., Interspeech 2014.
    """

    name: ClassVar[str] = "sign"
    scale_bytes: ClassVar[int] = 8
    signed: ClassVar[bool] = False

    by: str = choice("bucket", "bucket", "row", help="what shares a pair of means")
    bucket: int = number(512, low=1, high=2**30, whole=True, help="numbers that share a pair of means")

    def width(self) -> int:
        return 1

    def buckets(self, spec: Spec) -> int:
        return spec.row if self.by == "row" and spec.row else self.bucket

    def grain(self, spec: Spec) -> int:
        return self.buckets(spec) if self.by == "row" else 1

    def quantise(self, x: Tensor, scene: Scene) -> tuple[Tensor, Tensor]:
        return quantise.sign_symbols(x, self.buckets(scene.spec))

    def dequantise(self, symbols: Tensor, scales: Tensor, scene: Scene, out: Tensor, add: bool) -> None:
        quantise.sign_dequantise(symbols, scales, self.buckets(scene.spec), out, add)

    def writer(self, x: Tensor, scene: Scene) -> Coder:
        return quantise.sign_encoder(x, self.buckets(scene.spec))

    def reader(self, scene: Scene, out: Tensor, add: bool, negated: bool = False) -> Coder:
        return quantise.sign_decoder(self.buckets(scene.spec), out, add, negated)
