"""Numbers in fewer bits: fp32, fp16, bf16, which every backend can still sum, and `float`, summed in fp32."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.core.context import Context
from thinwire.core.fast import MessageCoder
from thinwire.core.options import choice
from thinwire.core.source import Source
from thinwire.core.spec import DTYPES, Kind, Spec
from thinwire.core.stage import Encoded, Stage, Transform, WireCoder
from thinwire.kernels import casts
from thinwire.kernels.modes import Mode, put
from thinwire.kernels.quantise import RangeCoder


@dataclass(frozen=True, repr=False)
class FP32(Transform):
    """Single precision as it is: the explicit form of not compressing."""

    name: ClassVar[str] = "fp32"

    @property
    def unbiased(self) -> bool:
        return True

    def out(self, spec: Spec) -> Spec:
        return spec.numbers(spec.numel)

    def encode(self, x: Tensor, ctx: Context) -> Encoded:
        return Encoded(x)

    def decode(self, encoded: Encoded, ctx: Context, out: Tensor, mode: Mode = "write") -> None:
        put(encoded.values, out, mode)


@dataclass(frozen=True, repr=False)
class _Short(Stage):
    """Elements of 16 bits, rounded to the nearest, ties to even."""

    @property
    def kind(self) -> Kind:
        raise NotImplementedError

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.kind]

    @property
    def wants_feedback(self) -> bool:
        return False  # rounding to nearest loses too little to be worth a residual

    def out(self, spec: Spec) -> Spec:
        return spec.numbers(spec.numel, self.kind, group=spec.group)

    def encode(self, x: Tensor, ctx: Context) -> Encoded:
        values = torch.empty(x.numel(), dtype=self.dtype, device=x.device)
        casts.cast_into(x, self.dtype, values.view(torch.uint8))
        return Encoded(values)

    def decode(self, encoded: Encoded, ctx: Context, out: Tensor, mode: Mode = "write") -> None:
        if mode == "subtract":
            put(encoded.values, out, mode)
        else:
            casts.cast_from(encoded.values.contiguous().view(torch.uint8), self.dtype, out, mode == "add")

    def fast(self, spec: Spec) -> MessageCoder:
        return _ShortMessages(self.dtype)


class _ShortMessages(MessageCoder):
    """Elements of 16 bits straight into and out of a message."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def writer(self, x: Source, ctx: Context) -> RangeCoder:
        return lambda low, high, message: casts.cast_into(x.range(low, high), self.dtype, message)

    def reader(self, ctx: Context, out: Tensor, mode: Mode) -> RangeCoder:
        def read(low: int, high: int, message: Tensor) -> None:
            if mode == "subtract":
                casts.cast_from(message, self.dtype, values := ctx.empty(high - low, out), False)
                out[low:high].sub_(values)
            else:
                casts.cast_from(message, self.dtype, out[low:high], mode == "add")

        return read


@dataclass(frozen=True, repr=False)
class FP16(_Short, Transform):
    """IEEE half precision, summed by the backend: 10 bits of mantissa, values above 65504 become infinite."""

    name: ClassVar[str] = "fp16"

    @property
    def kind(self) -> Kind:
        return "float16"


@dataclass(frozen=True, repr=False)
class BF16(_Short, Transform):
    """bfloat16, summed by the backend: the range of fp32 with 7 bits of mantissa."""

    name: ClassVar[str] = "bf16"

    @property
    def kind(self) -> Kind:
        return "bfloat16"


@dataclass(frozen=True, repr=False)
class Float(_Short, WireCoder):
    """Floats of 16 bits that travel as messages: the ranks add them in fp32 and round the sum at most once.

    `fp16` and `bf16` leave the sum to the backend, which rounds it to 16 bits at every addition; the error grows with
    the number of ranks. Here it does not, for the same bytes. Rounding is to the nearest, ties to even.
    """

    name: ClassVar[str] = "float"
    shown: ClassVar[tuple[str, ...]] = ("type",)

    type: str = choice("bf16", "bf16", "fp16", help="range of fp32 and 7 bits of mantissa, or up to 65504 and 10 bits")

    @property
    def kind(self) -> Kind:
        return "bfloat16" if self.type == "bf16" else "float16"
