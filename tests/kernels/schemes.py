"""Schemes of the quantisers, and what the reference computes for them."""

import torch
from torch import Tensor

from thinwire.kernels.modes import Mode
from thinwire.kernels.quantise import Kind, Norm, Scheme
from thinwire.kernels.reference import quantise as reference

TABLES = {
    2: [0, 1],
    3: [0, 0.1, 0.5, 1],
    4: [0, 1e-3, 0.02, 0.3, 0.31, 0.9, 1],
    8: [(i / 127) ** 2 for i in range(128)],
}
SIGNED = [(s, b) for s in ("uniform", "exponential") for b in range(2, 9)] + [("levels", b) for b in TABLES]
SCHEMES = [*SIGNED, ("sign", 1)]


def scheme_of(kind: Kind, bits: int, bucket: int, norm: Norm = "max") -> Scheme:
    levels = torch.tensor(TABLES[bits] if kind == "levels" else []).float()
    return Scheme(kind, bits, bucket, norm, levels)


def table(scheme: Scheme) -> tuple[Tensor, ...]:
    return (scheme.levels,) if scheme.kind == "levels" else ()


def expected_symbols(scheme: Scheme, x: Tensor, key: int, base: int) -> tuple[Tensor, Tensor]:
    """What the reference writes."""
    own = (scheme.bucket,) if scheme.kind == "sign" else (scheme.bits, scheme.bucket, scheme.norm, key, base)
    found: tuple[Tensor, Tensor] = getattr(reference, f"{scheme.kind}_symbols")(x, *table(scheme), *own)
    return found


def expect_decoded(scheme: Scheme, symbols: Tensor, scales: Tensor, out: Tensor, mode: Mode) -> None:
    """What the reference reads; to subtract is to add with opposite scales."""
    if mode == "subtract":
        scales = scales.clone().view(torch.float32).neg().view(torch.uint8)
    own = (scheme.bucket,) if scheme.kind == "sign" else (scheme.bits, scheme.bucket)
    getattr(reference, f"{scheme.kind}_dequantise")(symbols, scales, *table(scheme), *own, out, mode != "write")


def unaligned(size: int) -> Tensor:
    """A byte buffer at an odd address, filled with noise."""
    return torch.randint(0, 256, (size + 1,)).to(torch.uint8)[1:]
