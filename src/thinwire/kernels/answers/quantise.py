"""Known answers of the bucketed quantisers."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from thinwire.kernels.answers.inputs import (
    BASE,
    KEY,
    NUMEL,
    RANKS,
    Check,
    Work,
    numbers,
    ordinary,
    same_bits,
    unaligned,
)
from thinwire.kernels.modes import Mode
from thinwire.kernels.packing import packed_size
from thinwire.kernels.quantise import Kind, Norm, Scheme
from thinwire.kernels.reference import quantise as reference
from thinwire.kernels.reference.packing import unpack
from thinwire.kernels.reference.shares import divided

KINDS: tuple[Kind, ...] = ("uniform", "exponential", "levels", "sign")
SCHEMES: dict[str, tuple[Kind, int, int, Norm]] = {
    "qsgd": ("uniform", 4, 512, "max"),
    "qsgd with short buckets": ("uniform", 3, 100, "max"),
    "ternary": ("uniform", 2, 512, "max"),
    "nuqsgd": ("exponential", 4, 512, "l2"),
    "nuqsgd with long buckets": ("exponential", 8, 1024, "l2"),
    "levels": ("levels", 3, 512, "l2"),
    "sign": ("sign", 1, 512, "max"),
}
_TABLE = (0.0, 0.05, 0.25, 1.0)
_MODES: tuple[Mode, ...] = ("write", "add", "subtract")


class Expected(NamedTuple):
    """What the reference makes of x / RANKS, and of `out` by each mode."""

    message: Tensor
    symbols: Tensor
    decoded: dict[Mode, Tensor]


def scheme_of(name: str, device: torch.device | str = "cpu") -> Scheme:
    kind, bits, bucket, norm = SCHEMES[name]
    return Scheme(kind, bits, bucket, norm, torch.tensor(_TABLE if kind == "levels" else ()).to(device))


def expected(scheme: Scheme, x: Tensor, out: Tensor) -> Expected:
    n, scales = x.numel(), scheme.scale_bytes(x.numel())
    message = torch.empty(scales + packed_size(n, scheme.bits), dtype=torch.uint8)
    codes, sizes = scheme.reference_symbols(divided(x, RANKS), KEY, BASE)
    reference.pack_into(codes, sizes, scheme.bits, message[:scales], message[scales:])
    plain = unpack(message[scales:], n, scheme.bits)
    negated = message[:scales].clone().view(torch.float32).neg().view(torch.uint8)
    decoded: dict[Mode, Tensor] = {}
    for mode in _MODES:
        decoded[mode] = out.clone()
        scheme.reference_dequantise(plain, negated if mode == "subtract" else sizes, decoded[mode], mode != "write")
    return Expected(message, codes, decoded)


def checks(kind: Kind, device: torch.device) -> Iterator[Check]:
    """Encoding and decoding of packed codes, at addresses of both kinds, and of plain ones."""
    x, out = numbers(), ordinary(2)
    for name in (name for name, scheme in SCHEMES.items() if scheme[0] == kind):
        wanted = expected(scheme_of(name), x, out)
        yield f"{name}: encode", partial(_encodes, name, x, wanted, device)
        yield f"{name}: decode", partial(_decodes, name, out, wanted, device)
        yield f"{name}: plain symbols", partial(_takes_symbols, name, x, out, wanted, device)


def _encodes(name: str, x: Tensor, wanted: Expected, device: torch.device) -> bool:
    encode = scheme_of(name, device).encoder(x.to(device), KEY, BASE, RANKS)
    right = True
    for offset in (0, 1):
        room = unaligned(torch.zeros_like(wanted.message), device, offset)
        encode(0, NUMEL, room)
        right = right and same_bits(room, wanted.message)
    return right


def _decodes(name: str, out: Tensor, wanted: Expected, device: torch.device) -> bool:
    right = True
    for mode in _MODES:
        for offset in (0, 1):
            to = out.to(device, copy=True)
            scheme_of(name, device).decoder(to, mode)(0, NUMEL, unaligned(wanted.message, device, offset))
            right = right and same_bits(to, wanted.decoded[mode])
    return right


def _takes_symbols(name: str, x: Tensor, out: Tensor, wanted: Expected, device: torch.device) -> bool:
    """Codes of a byte, for stages that pack or code them afterwards; nothing is divided here."""
    scheme, to = scheme_of(name, device), out.to(device, copy=True)
    codes, scales = scheme.symbols(divided(x, RANKS).to(device), KEY, BASE)
    scheme.dequantise(codes, scales, to, "add")
    return (
        same_bits(codes, wanted.symbols)
        and same_bits(scales, wanted.message[: scales.numel()])
        and same_bits(to, wanted.decoded["add"])
    )


def works(kind: Kind, device: torch.device, numel: int) -> Iterator[Work]:
    x, out = torch.randn(numel, device=device), torch.zeros(numel, device=device)
    for name in (name for name, scheme in SCHEMES.items() if scheme[0] == kind):
        scheme = scheme_of(name, device)
        message = torch.zeros(scheme.scale_bytes(numel) + packed_size(numel, scheme.bits), dtype=torch.uint8)
        message = message.to(device)
        yield f"{name}: encode", partial(scheme.encoder(x, KEY), 0, numel, message)
        yield f"{name}: decode and add", partial(scheme.decoder(out, "add"), 0, numel, message)
