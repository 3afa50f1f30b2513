"""Orthonormal transforms into the frequency domain, where smooth gradients need few numbers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.core.context import Context
from thinwire.core.fast import BlockCoder
from thinwire.core.options import number
from thinwire.core.spec import Spec
from thinwire.core.stage import Encoded, Transform
from thinwire.errors import CodecError
from thinwire.kernels import spectra
from thinwire.kernels.modes import Mode, put
from thinwire.kernels.reference.fourier import quarter_turns

_BLOCK = 1 << 17  # numbers that are transformed at a time: what lies between the passes over them stays in the cache


@dataclass(frozen=True, repr=False)
class Chunked(Transform):
    """An orthonormal map of each chunk of consecutive numbers; the rest at the end is cut into shorter powers of two.

    It is linear and keeps lengths: |encode(x)| = |x|, so that the error made on coefficients is the error made on
    the gradient, and spectra are summed before one inverse transform.
    """

    isometry: ClassVar[bool] = True

    chunk: int = number(4096, low=2, high=2**20, whole=True, help="numbers transformed together; a power of two")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chunk & (self.chunk - 1):
            raise CodecError(f"{self}: chunk must be a power of two; use {1 << (self.chunk.bit_length() - 1)}.")

    @property
    def unbiased(self) -> bool:
        return True  # nothing is lost but the last bits

    def forward(self, rows: Tensor, owed: Tensor | None, out: Tensor, ranks: int) -> None:  # [count, length] all
        raise NotImplementedError

    def backward(self, rows: Tensor, out: Tensor) -> None:  # [count, length] both
        raise NotImplementedError

    def encode(self, x: Tensor, ctx: Context) -> Encoded:
        y = ctx.empty(self.out(ctx.spec).numel, x)
        for low in range(0, x.numel(), self.block):
            self.encode_block(x[low : low + self.block], 1, None, y[low : low + self.block])
        return Encoded(y)

    def decode(self, encoded: Encoded, ctx: Context, out: Tensor, mode: Mode = "write") -> None:
        y = encoded.values
        for low in range(0, out.numel(), self.block):
            here = out[low : low + self.block]
            self.decode_block(y[low : low + self.block], x := here if mode == "write" else torch.empty_like(here))
            if mode != "write":
                put(x, here, mode)

    @property
    def block(self) -> int:
        """Elements that are transformed at a time."""
        return max(1, _BLOCK // self.chunk) * self.chunk

    def fast(self, spec: Spec) -> BlockCoder | None:
        return ChunkedBlocks(self) if self.out(spec).numel == spec.numel else None

    def encode_block(self, x: Tensor, ranks: int, residual: Tensor | None, out: Tensor) -> None:
        for low, high, length in self._pieces(out.numel()):
            rows = x[low:high]
            if rows.numel() < high - low:
                rows = torch.nn.functional.pad(rows, (0, high - low - rows.numel()))
            more = None if residual is None else residual[low:high].view(-1, length)
            self.forward(rows.view(-1, length), more, out[low:high].view(-1, length), ranks)

    def decode_block(self, y: Tensor, out: Tensor) -> None:
        for low, high, length in self._pieces(y.numel()):
            rows = out[low:high]
            if rows.numel() < high - low:
                rows = y.new_empty(high - low)
            self.backward(y[low:high].view(-1, length), rows.view(-1, length))
            if high > out.numel():
                out[low:].copy_(rows[: out.numel() - low])

    def _pieces(self, numel: int) -> Iterator[tuple[int, int, int]]:
        """Bounds of what is cut into chunks of one length, and the length."""
        low, length = 0, self.chunk
        while low < numel:
            high = low + (numel - low) // length * length
            if high > low:
                yield low, high, length
            low, length = high, length // 2


class ChunkedBlocks(BlockCoder):
    """Blocks of whole chunks."""

    def __init__(self, stage: Chunked) -> None:
        self.stage, self.length = stage, stage.block

    def encode(self, x: Tensor, ranks: int, residual: Tensor | None, out: Tensor) -> None:
        self.stage.encode_block(x, ranks, residual, out)

    def decode(self, y: Tensor, out: Tensor) -> None:
        self.stage.decode_block(y, out)


@dataclass(frozen=True, repr=False)
class FFT(Chunked):
    """The real FFT of each chunk, as pairs (real, imaginary) that a stage behind it chooses or drops together.

    A chunk of N numbers gives N numbers, N/2 pairs: first (X_0, X_{N/2}), the two real bins, then sqrt(2) X_j for
    0 < j < N/2, whose factor stands for the mirrored half, so that the map is orthonormal. An odd number of numbers is
    filled up with one zero. `fft | topk(density=1-theta) | rangefloat` is the system of Wang et al., HPDC 2020, with
    |error|^2 <= theta |gradient|^2 before the numbers are shortened.
    """

    name: ClassVar[str] = "fft"

    def out(self, spec: Spec) -> Spec:
        return spec.numbers(spec.numel + spec.numel % 2, group=2)

    def forward(self, rows: Tensor, owed: Tensor | None, out: Tensor, ranks: int) -> None:
        spectra.pairs_of_rows(rows, owed, out, ranks)

    def backward(self, rows: Tensor, out: Tensor) -> None:
        spectra.rows_of_pairs(rows, out)


@dataclass(frozen=True, repr=False)
class DCT(Chunked):
    """The discrete cosine transform (DCT-II, orthonormal) of each chunk: real coefficients, chosen one by one.

    Computed from the spectrum of the same numbers in another order (Makhoul 1980): even positions, then odd ones
    backwards. Its pair j, times e^(-i pi j / 2N), has coefficient j as its real part, and coefficient N - j as its
    imaginary part with the opposite sign; the first pair has coefficients 0 and N/2.
    """

    name: ClassVar[str] = "dct"

    def out(self, spec: Spec) -> Spec:
        return spec.numbers(spec.numel)

    def forward(self, rows: Tensor, owed: Tensor | None, out: Tensor, ranks: int) -> None:
        count, length = rows.shape
        if length == 1:
            torch.div(rows, ranks, out=out)
            if owed is not None:
                out += owed
            return
        folded = torch.cat([rows[:, 0::2], rows[:, 1::2].flip(1)], 1)
        spectra.pairs_of_rows(folded, None, folded, ranks)
        (re, im), (cosine, sine) = folded.view(count, length // 2, 2).unbind(2), quarter_turns(length, rows.device)
        out[:, 0], out[:, length // 2] = re[:, 0], im[:, 0]
        re, im = re[:, 1:], im[:, 1:]
        out[:, 1 : length // 2] = re * cosine + im * sine
        out[:, length // 2 + 1 :] = (re * sine - im * cosine).flip(1)
        if owed is not None:
            out += owed

    def backward(self, rows: Tensor, out: Tensor) -> None:
        count, length = rows.shape
        if length == 1:
            out.copy_(rows)
            return
        low, high = rows[:, 1 : length // 2], rows[:, length // 2 + 1 :].flip(1)
        cosine, sine = quarter_turns(length, rows.device)
        folded = torch.empty_like(rows)
        pairs = folded.view(count, length // 2, 2)
        pairs[:, 0, 0], pairs[:, 0, 1] = rows[:, 0], rows[:, length // 2]
        pairs[:, 1:, 0] = low * cosine + high * sine
        pairs[:, 1:, 1] = low * sine - high * cosine
        spectra.rows_of_pairs(folded, folded)
        out[:, 0::2] = folded[:, : length // 2]
        out[:, 1::2] = folded[:, length // 2 :].flip(1)
