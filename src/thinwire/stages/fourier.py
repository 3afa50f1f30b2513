"""Orthonormal transforms into the frequency domain, where smooth gradients need few numbers."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.core.options import number
from thinwire.core.spec import Spec
from thinwire.core.stage import Encoded, Scene, Stage
from thinwire.errors import CodecError

_BLOCK = 1 << 19  # numbers that are transformed at a time: enough of them that preparing a transform costs little


@dataclass(frozen=True, repr=False)
class Chunked(Stage):
    """An orthonormal map of each chunk of consecutive numbers; the rest at the end is a shorter chunk of its own.

    It is linear and keeps lengths: |encode(x)| = |x|, so that the error made on coefficients is the error made on
    the gradient, and spectra are summed before one inverse transform.
    """

    additive: ClassVar[bool] = True
    orthonormal: ClassVar[bool] = True

    chunk: int = number(4096, low=2, high=2**24, whole=True, help="numbers transformed together; a power of two")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chunk & (self.chunk - 1):
            raise CodecError(f"{self}: chunk must be a power of two; use {1 << (self.chunk.bit_length() - 1)}.")

    @property
    def unbiased(self) -> bool:
        return True  # nothing is lost but the last bits

    def forward(self, rows: Tensor, out: Tensor) -> None:  # [count, length] both
        raise NotImplementedError

    def backward(self, rows: Tensor, out: Tensor) -> None:  # [count, length] both
        raise NotImplementedError

    def encode(self, x: Tensor, scene: Scene) -> Encoded:
        size = self.out(scene.spec).numel
        whole = x.numel() // self.chunk * self.chunk
        y = scene.empty(size, x)
        for rows, target in self._blocks(x[:whole], y[:whole]):
            self.forward(rows, target)
        if whole < size:
            rest = torch.nn.functional.pad(x[whole:], (0, size - x.numel()))
            self.forward(rest.view(1, -1), y[whole:].view(1, -1))
        return Encoded(y)

    def decode(self, encoded: Encoded, scene: Scene, out: Tensor, add: bool = False) -> None:
        y = encoded.values
        whole = out.numel() // self.chunk * self.chunk
        for rows, target in self._blocks(y[:whole], out[:whole]):
            if add:
                self.backward(rows, x := torch.empty_like(rows))
                target.add_(x)
            else:
                self.backward(rows, target)
        if whole < out.numel():
            rest = y.new_empty(1, y.numel() - whole)
            self.backward(y[whole:].view(1, -1), rest)
            x = rest.view(-1)[: out.numel() - whole]
            out[whole:].add_(x) if add else out[whole:].copy_(x)

    def _blocks(self, given: Tensor, target: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows of both, a few at a time, so that what lies between the passes over them stays in the cache."""
        step = max(1, _BLOCK // self.chunk) * self.chunk
        for low in range(0, given.numel(), step):
            yield given[low : low + step].view(-1, self.chunk), target[low : low + step].view(-1, self.chunk)


@dataclass(frozen=True, repr=False)
class FFT(Chunked):
    """The real FFT of each chunk, as pairs (real, imaginary) that a stage behind it chooses or drops together.

    A chunk of N numbers gives N numbers, N/2 pairs: first (X_0, X_{N/2}), the two real bins, then sqrt(2) X_j for
    0 < j < N/2, whose factor stands for the mirrored half, so that the map is orthonormal. A rest of odd length is
    filled up with one zero. `fft | topk(density=1-theta) | rangefloat` is the system of Wang et al., HPDC 2020, with
    |error|^2 <= theta |gradient|^2 before the numbers are shortened.
    """

    name: ClassVar[str] = "fft"

    def out(self, spec: Spec) -> Spec:
        return spec.numbers(spec.numel + spec.numel % 2, group=2)

    def forward(self, rows: Tensor, out: Tensor) -> None:
        length = rows.shape[1]
        bins = torch.view_as_real(torch.fft.rfft(rows))  # [count, length / 2 + 1, 2]
        pairs = out.view(-1, length // 2, 2)
        torch.mul(bins[:, :-1], math.sqrt(2.0 / length), out=pairs)
        pairs[:, 0, 0].mul_(math.sqrt(0.5))
        torch.mul(bins[:, -1, 0], math.sqrt(1.0 / length), out=pairs[:, 0, 1])

    def backward(self, rows: Tensor, out: Tensor) -> None:
        count, length = rows.shape
        pairs = rows.view(count, length // 2, 2)
        bins = torch.empty(count, length // 2 + 1, 2, dtype=rows.dtype, device=rows.device)
        torch.mul(pairs, math.sqrt(length / 2.0), out=bins[:, :-1])
        torch.mul(pairs[:, 0], math.sqrt(length), out=bins[:, 0])
        bins[:, -1, 0] = bins[:, 0, 1]
        bins[:, 0, 1] = bins[:, -1, 1] = 0.0
        torch.fft.irfft(torch.view_as_complex(bins), n=length, out=out)


@dataclass(frozen=True, repr=False)
class DCT(Chunked):
    """The discrete cosine transform (DCT-II, orthonormal) of each chunk: real coefficients, chosen one by one.

    Computed by an FFT of the same length (Makhoul 1980): even positions, then odd ones backwards, give V; with
    W_k = V_k e^(-i pi k / 2N) the coefficients are Re W_k and, from the other end, -Im W_k.
    """

    name: ClassVar[str] = "dct"

    def out(self, spec: Spec) -> Spec:
        return spec.numbers(spec.numel)

    def forward(self, rows: Tensor, out: Tensor) -> None:
        length = rows.shape[1]
        folded = torch.empty_like(rows)
        evens = (length + 1) // 2
        folded[:, :evens] = rows[:, 0::2]
        folded[:, evens:] = rows[:, 1::2].flip(1)
        bins = torch.fft.rfft(folded).mul_(_twiddle(length, rows.device))  # [count, length // 2 + 1]
        out[:, : bins.shape[1]] = bins.real
        out[:, length // 2 + 1 :] = -bins.imag[:, 1 : (length + 1) // 2].flip(1)
        out[:, 0] *= math.sqrt(0.5)

    def backward(self, rows: Tensor, out: Tensor) -> None:
        length = rows.shape[1]
        half = length // 2 + 1
        bins = torch.zeros(rows.shape[0], half, dtype=torch.complex64, device=rows.device)
        bins.real.copy_(rows[:, :half])
        bins.imag[:, 1:] = -rows[:, (length + 1) // 2 :].flip(1)
        bins[:, 0] *= math.sqrt(2.0)
        folded = torch.fft.irfft(bins.div_(_twiddle(length, rows.device)), n=length)
        out[:, 0::2] = folded[:, : (length + 1) // 2]
        out[:, 1::2] = folded[:, (length + 1) // 2 :].flip(1)


@lru_cache(maxsize=64)
def _twiddle(length: int, device: torch.device) -> Tensor:
    """sqrt(2/N) e^(-i pi k / 2N) for the bins of a real FFT of N numbers."""
    angle = torch.arange(length // 2 + 1, dtype=torch.float64) * (-math.pi / (2 * length))
    return torch.polar(torch.full_like(angle, math.sqrt(2.0 / length)), angle).to(torch.complex64).to(device)
