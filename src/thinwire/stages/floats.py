"""Numbers in fewer bits that every backend can still sum: fp32, fp16, bf16."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.core.spec import DTYPES, Kind, Spec
from thinwire.core.stage import Encoded, Scene, Stage
from thinwire.kernels import casts


@dataclass(frozen=True, repr=False)
class _Cast(Stage):
    """Numbers rounded to a shorter float; sums are taken in that type by the backend."""

    kind: ClassVar[Kind]
    additive: ClassVar[bool] = True

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
class _Short(_Cast):
    """Numbers of 16 bits, rounded to the nearest, ties to even."""

    def encode(self, x: Tensor, scene: Scene) -> Encoded:
        values = torch.empty(x.numel(), dtype=DTYPES[self.kind], device=x.device)
        casts.cast_into(x, values.dtype, values.view(torch.uint8))
        return Encoded(values)

    def decode(self, encoded: Encoded, scene: Scene, out: Tensor, add: bool = False) -> None:
        casts.cast_from(encoded.values.contiguous().view(torch.uint8), DTYPES[self.kind], out, add)

    def encode_into(self, x: Tensor, scene: Scene, message: Tensor) -> bool:
        casts.cast_into(x, DTYPES[self.kind], message)
        return True

    def decode_from(self, message: Tensor, scene: Scene, out: Tensor, add: bool) -> bool:
        casts.cast_from(message, DTYPES[self.kind], out, add)
        return True


@dataclass(frozen=True, repr=False)
class FP16(_Short):
    """IEEE half precision: 10 bits of mantissa, values above 65504 become infinite."""

    name: ClassVar[str] = "fp16"
    kind: ClassVar[Kind] = "float16"


@dataclass(frozen=True, repr=False)
class BF16(_Short):
    """bfloat16: the range of fp32 with 7 bits of mantissa."""

    name: ClassVar[str] = "bf16"
    kind: ClassVar[Kind] = "bfloat16"
