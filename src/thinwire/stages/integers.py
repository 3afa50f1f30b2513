"""Shared-scale integers: quantised numbers that the backend's own all-reduce can sum."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from thinwire.core.context import NEAR_OVERFLOW, Context
from thinwire.core.fast import PartCoder, Parts
from thinwire.core.ops import AllReduce, Rounds
from thinwire.core.options import number
from thinwire.core.source import Source
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import Encoded, Transform
from thinwire.errors import CodecError
from thinwire.kernels.integers import integers_decode, integers_encode, lane_count
from thinwire.kernels.modes import Mode
from thinwire.kernels.reference.quantise import single
from thinwire.kernels.shares import divided, largest_magnitude


@dataclass(frozen=True, repr=False)
class Integers(Transform):
    """Stochastic rounding to integers of one scale that all ranks share, several to an int32 lane.

    The ranks agree on the largest magnitude m of all. A rank has L = floor((2^(bits-1) - 1) / P) levels on
    either side, so that a sum over P ranks fits its field; x becomes floor(x L / m + u), u uniform in [0, 1).
    Fields add up inside a lane without carrying into each other because the lanes are read back as signed
    digits. Unbiased (Global-QSGD, Xin et al. 2023, uniform dithering).
    """

    name: ClassVar[str] = "integers"
    rounds: ClassVar[int] = 1
    shown: ClassVar[tuple[str, ...]] = ("bits",)

    bits: int = number(8, low=2, high=16, whole=True, help="bits of a number on the wire; 32 // bits share a lane")

    @property
    def unbiased(self) -> bool:
        return True

    def out(self, spec: Spec) -> Spec:
        return spec.numbers(lane_count(spec.numel, self.bits), "int32")

    def agreement(self, spec: Spec, ranks: int) -> Size:
        return Size(2 * (ranks - 1) * 4)

    def levels(self, ranks: int) -> int:
        levels = int(2 ** (self.bits - 1) - 1) // ranks
        if levels < 1:
            wide_enough = next((b for b in range(self.bits, 17) if (2 ** (b - 1) - 1) // ranks >= 1), None)
            remedy = f"use integers(bits={wide_enough}) or more" if wide_enough else "use fp16, or qsgd"
            raise CodecError(f"{self}: the sum over {ranks} ranks would overflow {self.bits} bits; {remedy}.")
        return levels

    def agree(self, x: Source, ctx: Context) -> Rounds[Any]:
        """The largest magnitude on any rank; infinite if any rank has a non-finite value."""
        self.levels(ctx.ranks)
        values, divisor = x.undivided() or (x.tensor(), 1)
        (shared,) = yield AllReduce([divided(largest_magnitude(values), divisor)], "max")
        return shared

    def encode(self, x: Tensor, ctx: Context) -> Encoded:
        return Encoded(self.lanes(x, 1, ctx))

    def lanes(self, x: Tensor, divisor: int, ctx: Context) -> Tensor:
        """x / divisor as integers."""
        levels, largest = self.levels(ctx.ranks), float(ctx.shared)
        if not math.isfinite(largest):
            return torch.zeros(self.out(ctx.spec).numel, dtype=torch.int32, device=x.device)
        lift = 2.0**100 if largest < 2.0**-100 else 1.0  # keeps the factor finite when all numbers are tiny
        factor = single(levels / (largest * lift)) if largest else 0.0
        lanes = ctx.empty(self.out(ctx.spec).numel, x, torch.int32)
        integers_encode(x, divisor, self.bits, levels, lift, factor, ctx.key(), ctx.base, lanes)
        return lanes

    def decode(self, encoded: Encoded, ctx: Context, out: Tensor, mode: Mode = "write") -> None:
        largest = float(ctx.shared)
        if not math.isfinite(largest):
            out.fill_(float("nan"))
            return
        unit = single(1.0 / self.levels(ctx.ranks))
        if mode == "subtract":
            integers_decode(encoded.values, self.bits, unit, largest, values := ctx.empty(out.numel(), out), False)
            out.sub_(values)
        else:
            integers_decode(encoded.values, self.bits, unit, largest, out, mode == "add")

    def fast(self, spec: Spec) -> PartCoder:
        return IntegerParts(self)


class IntegerParts(PartCoder):
    """Lanes are encoded and decoded a few at a time; a share of a mean is divided on the way."""

    length = 1

    def __init__(self, stage: Integers) -> None:
        self.stage = stage

    def parts(self, x: Source, ctx: Context) -> Parts:
        return Lanes(self.stage, *(x.undivided() or (x.tensor(), 1)), ctx)

    def finite(self, data: Tensor, ctx: Context) -> bool | None:
        """No sum is larger than the ranks' largest magnitudes together, but for rounding."""
        largest = float(ctx.shared) * ctx.ranks
        return largest < math.inf if largest < NEAR_OVERFLOW or largest == math.inf else None


class Lanes(Parts):
    """The elements x / divisor, several to a lane; draws go by position, whatever the parts are."""

    def __init__(self, stage: Integers, x: Tensor, divisor: int, ctx: Context) -> None:
        self.length, self.count = 1, stage.out(ctx.spec).numel
        self.stage, self.x, self.divisor, self.ctx = stage, x, divisor, ctx
        self.total = torch.empty(0)

    def set_output(self, out: Tensor) -> None:
        self.total = out

    def _range(self, low: int, high: int) -> tuple[slice, Context]:
        fields = 32 // self.stage.bits
        these = slice(low * fields, min(high * fields, self.x.numel()))
        spec = self.ctx.spec.numbers(these.stop - these.start)
        return these, self.ctx.moved(spec=spec, base=self.ctx.base + these.start)

    def encode(self, low: int, high: int) -> Tensor:
        these, ctx = self._range(low, high)
        return self.stage.lanes(self.x[these], self.divisor, ctx)

    def decode(self, values: Tensor, low: int, high: int) -> None:
        these, ctx = self._range(low, high)
        self.stage.decode(Encoded(values), ctx.moved(contributions=ctx.ranks), self.total[these])

    def result(self) -> Tensor:
        return self.total

    def finite(self) -> bool | None:
        return IntegerParts(self.stage).finite(self.total, self.ctx)

    def whole(self, encoded: list[Tensor]) -> Tensor:
        return self.stage.lanes(self.x, self.divisor, self.ctx)
