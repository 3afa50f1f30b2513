"""Orthonormal transforms into the frequency domain, where smooth gradients need few numbers."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.core.options import number
from thinwire.core.spec import Spec
from thinwire.core.stage import Encoded, Scene, Stage
from thinwire.errors import CodecError
from thinwire.kernels import spectra

_BLOCK = 1 << 17  # numbers that are transformed at a time: what lies between the passes over them stays in the cache


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

    def forward(self, rows: Tensor, owed: Tensor | None, out: Tensor) -> None:  # [count, length] all
        raise NotImplementedError

    def backward(self, rows: Tensor, out: Tensor) -> None:  # [count, length] both
        raise NotImplementedError

    def encode(self, x: Tensor, scene: Scene) -> Encoded:
        y = scene.empty(self.out(scene.spec).numel, x)
        for low in range(0, x.numel(), self._block):
            self.encode_block(x[low : low + self._block], None, y[low : low + self._block])
        return Encoded(y)

    def decode(self, encoded: Encoded, scene: Scene, out: Tensor, add: bool = False) -> None:
        y = encoded.values
        for low in range(0, out.numel(), self._block):
            here = out[low : low + self._block]
            self.decode_block(y[low : low + self._block], x := torch.empty_like(here) if add else here)
            if add:
                here += x

    @property
    def _block(self) -> int:
        return max(1, _BLOCK // self.chunk) * self.chunk

    def block(self, spec: Spec) -> int:
        return self._block if self.out(spec).numel == spec.numel else 0

    def encode_block(self, x: Tensor, owed: Tensor | None, out: Tensor) -> None:
        whole = x.numel() // self.chunk * self.chunk
        if whole:
            more = None if owed is None else owed[:whole].view(-1, self.chunk)
            self.forward(x[:whole].view(-1, self.chunk), more, out[:whole].view(-1, self.chunk))
        if whole < out.numel():
            more = None if owed is None else owed[whole:].view(1, -1)
            rest = torch.nn.functional.pad(x[whole:], (0, out.numel() - x.numel()))
            self.forward(rest.view(1, -1), more, out[whole:].view(1, -1))

    def decode_block(self, y: Tensor, out: Tensor) -> None:
        whole = out.numel() // self.chunk * self.chunk
        if whole:
            self.backward(y[:whole].view(-1, self.chunk), out[:whole].view(-1, self.chunk))
        if whole < out.numel():
            rest = y.new_empty(1, y.numel() - whole)
            self.backward(y[whole:].view(1, -1), rest)
            out[whole:].copy_(rest.view(-1)[: out.numel() - whole])


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

    def forward(self, rows: Tensor, owed: Tensor | None, out: Tensor) -> None:
        spectra.pairs_of_rows(rows, owed, out)

    def backward(self, rows: Tensor, out: Tensor) -> None:
        spectra.rows_of_pairs(rows, out)


@dataclass(frozen=True, repr=False)
class DCT(Chunked):
    """The discrete cosine transform (DCT-II, orthonormal) of each chunk: real coefficients, chosen one by one.

    Computed by an FFT of the same length (Makhoul 1980): even positions, then odd ones backwards, give V; with
    W_k = V_k e^(-i pi k / 2N) the coefficients are Re W_k and, from the other end, -Im W_k.
    """

    name: ClassVar[str] = "dct"

    def out(self, spec: Spec) -> Spec:
        return spec.numbers(spec.numel)

    def forward(self, rows: Tensor, owed: Tensor | None, out: Tensor) -> None:
        length = rows.shape[1]
        folded = torch.empty_like(rows)
        evens = (length + 1) // 2
        folded[:, :evens] = rows[:, 0::2]
        folded[:, evens:] = rows[:, 1::2].flip(1)
        bins = torch.fft.rfft(folded).mul_(_twiddle(length, rows.device))  # [count, length // 2 + 1]
        out[:, : bins.shape[1]] = bins.real
        out[:, length // 2 + 1 :] = -bins.imag[:, 1 : (length + 1) // 2].flip(1)
        out[:, 0] *= math.sqrt(0.5)
        if owed is not None:
            out += owed

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
