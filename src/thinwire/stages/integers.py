"""Shared-scale integers: quantised numbers that the backend's own all-reduce can sum."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from thinwire.core.ops import AllReduce, Rounds
from thinwire.core.options import number
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import Encoded, Scene, Stage
from thinwire.errors import CodecError
from thinwire.kernels.reference.hashing import hash32

_LANE = 32  # every backend sums int32


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
    shown: ClassVar[tuple[str, ...]] = ("bits",)

    bits: int = number(8, low=2, high=16, whole=True, help="bits of a number on the wire; 32 // bits share a lane")

    @property
    def unbiased(self) -> bool:
        return True

    def out(self, spec: Spec) -> Spec:
        return spec.numbers(-(-spec.numel // self.fields), "int32")

    @property
    def fields(self) -> int:
        return _LANE // self.bits

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
        largest = x.abs().amax().reshape(1) if x.numel() else x.new_zeros(1)
        largest = torch.where(torch.isfinite(largest), largest, torch.full_like(largest, float("inf")))
        (shared,) = yield AllReduce([largest], "max")
        return shared

    def encode(self, x: Tensor, scene: Scene) -> Encoded:
        levels, largest = self.levels(scene.ranks), scene.context
        if not torch.isfinite(largest).item():
            return Encoded(torch.zeros(self.out(scene.spec).numel, dtype=torch.int32, device=x.device))
        shift = _shift(largest)
        scaled = (x * shift) * (levels / (largest * shift)).nan_to_num(0.0)
        noise = hash32(scene.key(), scene.base, x.numel(), x.device).bitwise_right_shift(8) * 2.0**-24
        codes = torch.floor(scaled + noise.float()).clamp_(-levels, levels).to(torch.int32)
        return Encoded(self._to_lanes(codes))

    def decode(self, encoded: Encoded, scene: Scene, out: Tensor, add: bool = False) -> None:
        largest = scene.context
        if not torch.isfinite(largest).item():
            out.fill_(float("nan"))
            return
        codes = self._from_lanes(encoded.values, out.numel())
        values = codes.float() * (1.0 / self.levels(scene.ranks)) * largest
        if add:
            out.add_(values)
        else:
            out.copy_(values)

    def _to_lanes(self, codes: Tensor) -> Tensor:
        """Signed digits to base 2^bits, digit f of a lane from the f-th part of the numbers."""
        padded = torch.nn.functional.pad(codes, (0, -codes.numel() % self.fields)).view(self.fields, -1)
        lanes = padded[0].clone()
        for digit in range(1, self.fields):
            lanes += padded[digit] << (digit * self.bits)
        return lanes

    def _from_lanes(self, lanes: Tensor, numel: int) -> Tensor:
        """Read the signed digits back, lowest first, taking each from what remains."""
        digits = []
        for _ in range(self.fields):
            digit = (lanes << (_LANE - self.bits)) >> (_LANE - self.bits)
            digits.append(digit)
            lanes = (lanes - digit) >> self.bits
        return torch.cat(digits)[:numel]


def _shift(largest: Tensor) -> Tensor:
    """A power of two that keeps levels / largest finite when all numbers are tiny."""
    return torch.where(largest < 2.0**-100, torch.full_like(largest, 2.0**100), torch.ones_like(largest))
