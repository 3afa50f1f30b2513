"""Shared-scale integers: quantised numbers that the backend's own all-reduce can sum."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from thinwire.core.given import Given
from thinwire.core.ops import AllReduce, Rounds
from thinwire.core.options import number
from thinwire.core.parts import Parts, Pieces
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import NEAR_OVERFLOW, Encoded, Scene, Stage
from thinwire.errors import CodecError
from thinwire.kernels.integers import integers_decode, integers_encode, lane_count
from thinwire.kernels.reference.quantise import single
from thinwire.kernels.shares import largest_magnitude


@dataclass(frozen=True, repr=False)
class Integers(Stage):
    """Stochastic rounding to integers of one scale that all ranks share, several to an int32 lane.

    The ranks agree on the largest magnitude m of all. A rank has L = floor((2^(bits-1) - 1) / P) levels on
    either side, so that a sum over P ranks fits its field; x becomes floor(x L / m + u), u uniform in [0, 1).
    Fields add up inside a lane without carrying into each other because the lanes are read back as signed
    digits. Unbiased (Global-QSGD, Xin et al. 2023, uniform dithering).
    """

    name: ClassVar[str] = "integers"
    additive: ClassVar[bool] = True
    wire: ClassVar[bool] = False
    rounds: ClassVar[int] = 1
    parted: ClassVar[bool] = True
    divides: ClassVar[bool] = True
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

    def agree(self, x: Tensor, scene: Scene) -> Rounds[Any]:
        """The largest magnitude on any rank; infinite if any rank has a non-finite value."""
        self.levels(scene.ranks)
        (shared,) = yield AllReduce([largest_magnitude(x) / scene.divisor], "max")
        return shared

    def encode(self, x: Tensor, scene: Scene) -> Encoded:
        levels, largest = self.levels(scene.ranks), float(scene.context)
        if not math.isfinite(largest):
            return Encoded(torch.zeros(self.out(scene.spec).numel, dtype=torch.int32, device=x.device))
        lift = 2.0**100 if largest < 2.0**-100 else 1.0  # keeps the factor finite when all numbers are tiny
        factor = single(levels / (largest * lift)) if largest else 0.0
        lanes = scene.empty(self.out(scene.spec).numel, x, torch.int32)
        integers_encode(x, scene.divisor, self.bits, levels, lift, factor, scene.key(), scene.base, lanes)
        return Encoded(lanes)

    def decode(self, encoded: Encoded, scene: Scene, out: Tensor, add: bool = False) -> None:
        largest = float(scene.context)
        if not math.isfinite(largest):
            out.fill_(float("nan"))
            return
        unit = single(1.0 / self.levels(scene.ranks))
        integers_decode(encoded.values, self.bits, unit, largest, out, add)

    def tells_finite(self, message: Tensor, scene: Scene) -> bool | None:
        """No sum is larger than the ranks' largest magnitudes together, but for rounding."""
        largest = float(scene.context) * scene.ranks
        return largest < math.inf if largest < NEAR_OVERFLOW or largest == math.inf else None

    def parts(self, given: Given, scene: Scene) -> Parts:
        return Pieces(self, given.whole(), scene, 32 // self.bits)
