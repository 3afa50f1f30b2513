"""Numbers in fewer bits that every backend can still sum: fp32, fp16, bf16."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire.core.spec import DTYPES, Kind, Spec
from thinwire.core.stage import Encoded, Scene, Stage


@dataclass(frozen=True, repr=False)
class _Cast(Stage):
    """Numbers rounded to a shorter float; sums are taken in that type by the backend."""

    kind: ClassVar[Kind]
    additive: ClassVar[bool] = True
    splits: ClassVar[bool] = True

    @property
    def feeds(self) -> bool:
        return False  # rounding to nearest loses too little to be worth a residual

    def out(self, spec: Spec) -> Spec:
        return spec.numbers(spec.numel, self.kind)

    def encode(self, x: Tensor, scene: Scene) -> Encoded:
        return Encoded(x.to(DTYPES[self.kind]))

    def decode(self, encoded: Encoded, scene: Scene, out: Tensor, add: bool = False) -> None:
        if add:
            out.add_(encoded.values)
        else:
            out.copy_(encoded.values)


@dataclass(frozen=True, repr=False)
class FP32(_Cast):
    """Single precision as it is: the explicit form of not compressing."""

    name: ClassVar[str] = "fp32"
    kind: ClassVar[Kind] = "float32"

    @property
    def unbiased(self) -> bool:
        return True


@dataclass(frozen=True, repr=False)
class FP16(_Cast):
    """IEEE half precision: 10 bits of mantissa, values above 65504 become infinite."""

    name: ClassVar[str] = "fp16"
    kind: ClassVar[Kind] = "float16"


@dataclass(frozen=True, repr=False)
class BF16(_Cast):
    """bfloat16: the range of fp32 with 7 bits of mantissa."""

    name: ClassVar[str] = "bf16"
    kind: ClassVar[Kind] = "bfloat16"
