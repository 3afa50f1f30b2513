"""Stochastic quantisers with one scale for each bucket: QSGD, NUQSGD, TernGrad, and 1-bit SGD."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, cast

import torch
from torch import Tensor

from thinwire.core.context import NEAR_OVERFLOW, Context
from thinwire.core.fast import MessageCoder
from thinwire.core.options import choice, number
from thinwire.core.source import Source
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import Encoded, WireCoder
from thinwire.kernels.modes import Mode
from thinwire.kernels.quantise import Norm, RangeCoder, Scheme, clip_to_sigma, fixed_scheme
from thinwire.kernels.shares import magnitude_in


@dataclass(frozen=True, repr=False)
class Bucketed(WireCoder):
    """Symbols of a few bits, and a scale for each bucket of consecutive elements.

    A quantiser says which scheme it uses; the rest follows.
    """

    signed: ClassVar[bool] = True

    def scheme(self, spec: Spec, ctx: Context | None = None, device: torch.device | None = None) -> Scheme:
        """How elements become codes; without a ctx, sizes only."""
        raise NotImplementedError

    def side(self, spec: Spec) -> Size:
        return Size(self.scheme(spec).scale_bytes(spec.numel))

    def out(self, spec: Spec) -> Spec:
        return spec.symbols(self.scheme(spec).bits, self.signed)

    def encode(self, x: Tensor, ctx: Context) -> Encoded:
        return Encoded(*self.scheme(ctx.spec, ctx, x.device).symbols(x, ctx.key(), ctx.base))

    def decode(self, encoded: Encoded, ctx: Context, out: Tensor, mode: Mode = "write") -> None:
        side = encoded.side if encoded.side is not None else encoded.values.new_empty(0)
        self.scheme(ctx.spec, ctx, out.device).dequantise(encoded.values, side, out, mode)

    def fast(self, spec: Spec) -> MessageCoder:
        return BucketedMessages(self, spec)


class BucketedMessages(MessageCoder):
    """Scales and packed codes written and read in one pass; a share of a mean is divided on the way."""

    def __init__(self, stage: Bucketed, spec: Spec) -> None:
        self.stage, self.sizes = stage, stage.scheme(spec)
        self.split = math.lcm(self.sizes.bucket, 8)  # whole buckets, in whole bytes

    def writer(self, x: Source, ctx: Context) -> RangeCoder:
        scheme = self.stage.scheme(ctx.spec, ctx, x.values.device)
        if (undivided := x.undivided()) is not None:
            values, ranks = undivided
            return scheme.encoder(values, ctx.key(), ctx.base, ranks)
        return x.before(scheme.encoder(x.values, ctx.key(), ctx.base))

    def reader(self, ctx: Context, out: Tensor, mode: Mode) -> RangeCoder:
        return self.stage.scheme(ctx.spec, ctx, out.device).decoder(out, mode)

    def finite(self, data: Tensor, ctx: Context) -> bool | None:
        """No element is larger than the scale of its bucket, but for rounding."""
        largest = magnitude_in(data, self.sizes.scale_bytes(ctx.spec.numel) // 4)
        return largest < math.inf if largest < NEAR_OVERFLOW or largest == math.inf else None


@dataclass(frozen=True, repr=False)
class QSGD(Bucketed):
    """Uniform levels: |x| / scale is rounded at random to one of the multiples of 1/s around it, s = 2^(bits-1) - 1.

    E[Q(x)] = x. With the L2 norm E|Q(x) - x|^2 <= min(n/s^2, sqrt(n)/s) |x|^2 for a bucket of n; with the
    largest magnitude (QSGDinf) <= n max|x|^2 / (4 s^2), far less in practice. Alistarh et al., NIPS 2017.
    """

    name: ClassVar[str] = "qsgd"
    shown: ClassVar[tuple[str, ...]] = ("bits",)

    bits: int = number(4, low=2, high=8, whole=True, help="bits of a number, one of them its sign")
    norm: str = choice("max", "max", "l2", help="what a bucket is scaled by")
    bucket: int = number(512, low=1, high=2**30, whole=True, help="numbers that share a scale")

    @property
    def unbiased(self) -> bool:
        return True

    def scheme(self, spec: Spec, ctx: Context | None = None, device: torch.device | None = None) -> Scheme:
        return fixed_scheme("uniform", self.bits, self.bucket, cast(Norm, self.norm))


@dataclass(frozen=True, repr=False)
class NUQSGD(Bucketed):
    """Exponential levels 0, p^S, ..., p, 1 with S = 2^(bits-1) - 2: fine where most gradients are, near zero.

    E[Q(x)] = x, and for p = 1/2 and a bucket of d numbers E|Q(x) - x|^2 <= e |x|^2 with the L2 norm, where
    e = 1/8 + d 2^(-2S-2) if d < 2^(2S+2), else 2^-S sqrt(d) - 7/8. With the largest magnitude as scale the
    levels reach further down still. Ramezani-Kebrya et al., JMLR 22(114), 2021.
    """

    name: ClassVar[str] = "nuqsgd"
    shown: ClassVar[tuple[str, ...]] = ("bits",)

    bits: int = number(4, low=2, high=8, whole=True, help="bits of a number, one of them its sign")
    norm: str = choice("l2", "l2", "max", help="what a bucket is scaled by")
    bucket: int = number(512, low=1, high=2**30, whole=True, help="numbers that share a scale")
    base: float = number(0.5, low=0.05, high=0.95, help="ratio p of one level to the next")

    @property
    def unbiased(self) -> bool:
        return True

    def scheme(self, spec: Spec, ctx: Context | None = None, device: torch.device | None = None) -> Scheme:
        if self.base == 0.5:
            return fixed_scheme("exponential", self.bits, self.bucket, cast(Norm, self.norm))
        return _levels_scheme(self.base, self.bits, self.bucket, cast(Norm, self.norm), device or torch.device("cpu"))


@lru_cache(maxsize=64)
def _levels_scheme(base: float, bits: int, bucket: int, norm: Norm, device: torch.device) -> Scheme:
    """Kept, because a table is copied to its device and checked there."""
    return Scheme("levels", bits, bucket, norm, exponential_levels(base, bits).to(device))


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

    def scheme(self, spec: Spec, ctx: Context | None = None, device: torch.device | None = None) -> Scheme:
        return fixed_scheme("uniform", 2, self.bucket)

    def encode(self, x: Tensor, ctx: Context) -> Encoded:
        return super().encode(self.clipped(x), ctx)

    def clipped(self, x: Tensor) -> Tensor:
        return x if self.clip is None else clip_to_sigma(x, self.bucket, self.clip)

    def fast(self, spec: Spec) -> MessageCoder:
        return ClippedMessages(self, spec)


class ClippedMessages(BucketedMessages):
    """Messages of elements that are clipped first."""

    stage: Ternary

    def writer(self, x: Source, ctx: Context) -> RangeCoder:
        if self.stage.clip is None:
            return super().writer(x, ctx)
        scheme, key, base = self.stage.scheme(ctx.spec), ctx.key(), ctx.base

        def encode(low: int, high: int, message: Tensor) -> None:
            scheme.encoder(self.stage.clipped(x.range(low, high)), key, base + low)(0, high - low, message)

        return encode


@dataclass(frozen=True, repr=False)
class Sign(Bucketed):
    """1-bit SGD: the sign of each number, and for each bucket (or row) the means of its negative and other numbers.

    The two means minimise the squared error for these bits. Biased; error feedback is essential. With `by=row`
    a bucket is a row of the weight, as in the paper. Seide et al., Interspeech 2014.
    """

    name: ClassVar[str] = "sign"
    signed: ClassVar[bool] = False

    by: str = choice("bucket", "bucket", "row", help="what shares a pair of means")
    bucket: int = number(512, low=1, high=2**30, whole=True, help="numbers that share a pair of means")

    def scheme(self, spec: Spec, ctx: Context | None = None, device: torch.device | None = None) -> Scheme:
        return fixed_scheme("sign", 1, spec.row if self.by == "row" and spec.row else self.bucket)

    def shard_multiple(self, spec: Spec) -> int:
        return self.scheme(spec).bucket if self.by == "row" else 1
