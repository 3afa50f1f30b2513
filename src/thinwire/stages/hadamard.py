"""A random rotation that makes any gradient look Gaussian."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.core.context import Context
from thinwire.core.options import number
from thinwire.core.spec import Spec
from thinwire.core.stage import Encoded, Transform
from thinwire.errors import CodecError
from thinwire.kernels.modes import Mode, put
from thinwire.kernels.reference.hashing import hash32, make_key

_FACTOR = 64  # a transform of N is done as matrix products with Hadamard matrices of at most this size


@dataclass(frozen=True, repr=False)
class Hadamard(Transform):
    """H D x / sqrt(N) for each chunk of N numbers: random signs D, then the Walsh-Hadamard matrix H.

    A coefficient is the sum of N numbers with random signs, hence nearly Gaussian whatever the gradient is like: no
    outlier stretches a quantiser's scale any more (`hadamard | qsgd`, cf. EDEN, Vargaftik et al., ICML 2022).
    Orthonormal and linear. N is `chunk`, or the largest power of two that fits into a shorter tensor; when the tensor
    is no multiple of N, its last N numbers are rotated once more, which reaches the rest at the end without filling
    up. The signs depend on `seed` alone, so they are the same on all ranks, at all steps and for all decoders.
    """

    name: ClassVar[str] = "hadamard"
    isometry: ClassVar[bool] = True
    portable: ClassVar[bool] = False  # torch's matrix products

    chunk: int = number(4096, low=2, high=2**20, whole=True, help="numbers that are rotated together; a power of two")
    seed: int = number(0, low=0, high=2**31, whole=True, help="of the signs")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chunk & (self.chunk - 1):
            raise CodecError(f"{self}: chunk must be a power of two; use {1 << (self.chunk.bit_length() - 1)}.")

    @property
    def unbiased(self) -> bool:
        return True

    def out(self, spec: Spec) -> Spec:
        return spec.numbers(spec.numel)

    def encode(self, x: Tensor, ctx: Context) -> Encoded:
        if x.numel() == 0:
            return Encoded(x)
        size = min(self.chunk, 1 << (x.numel().bit_length() - 1))
        whole = x.numel() // size * size
        y = torch.empty_like(x)
        y[:whole] = rotated(x[:whole].view(-1, size) * self._signs(size, 0, x.device)).view(-1)
        if whole < x.numel():
            y[whole:] = x[whole:]
            y[-size:] = rotated(y[-size:].view(1, -1) * self._signs(size, 1, x.device)).view(-1)
        return Encoded(y)

    def decode(self, encoded: Encoded, ctx: Context, out: Tensor, mode: Mode = "write") -> None:
        y = encoded.values
        if y.numel() == 0:
            return
        size = min(self.chunk, 1 << (y.numel().bit_length() - 1))
        whole = y.numel() // size * size
        if whole < y.numel():
            y = y.clone()
            y[-size:] = (rotated(y[-size:].view(1, -1)) * self._signs(size, 1, y.device)).view(-1)
        x = (rotated(y[:whole].view(-1, size)) * self._signs(size, 0, y.device)).view(-1)
        for low, high, part in ((0, whole, x), (whole, y.numel(), y[whole:])):
            put(part, out[low:high], mode)

    def _signs(self, size: int, turn: int, device: torch.device) -> Tensor:
        return _signs(self.seed, size, turn, device)


def rotated(rows: Tensor) -> Tensor:  # [count, N] -> [count, N]
    """H x / sqrt(N) for each row, H = H_a x H_b x ... as a Kronecker product of small Hadamard matrices."""
    count, size = rows.shape
    inner = 1
    while inner < size:
        factor = min(_FACTOR, size // inner)
        matrix = _hadamard(factor, rows.device)
        rows = rows.reshape(-1, factor) @ matrix if inner == 1 else matrix @ rows.view(-1, factor, inner)
        inner *= factor
    return rows.view(count, size)


@lru_cache(maxsize=64)
def _hadamard(size: int, device: torch.device) -> Tensor:
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < size:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), matrix)
    return (matrix / math.sqrt(size)).to(device)


@lru_cache(maxsize=64)
def _signs(seed: int, size: int, turn: int, device: torch.device) -> Tensor:
    bits = hash32(make_key(seed, 0, 0, turn), 0, size, device)
    return (1 - 2 * (bits >> 31)).float()
