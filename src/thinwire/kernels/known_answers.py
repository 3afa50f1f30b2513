"""What the kernels of a device compute, compared bit for bit with the reference on the CPU."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from thinwire.kernels import integers, packing, rangefloat, shares
from thinwire.kernels.gpu import gpu_for, loaded, untested
from thinwire.kernels.native import native_for
from thinwire.kernels.packing import packed_size
from thinwire.kernels.quantise import Kind, Norm, Scheme
from thinwire.kernels.reference import integers as reference_integers
from thinwire.kernels.reference import packing as reference_packing
from thinwire.kernels.reference import quantise as reference
from thinwire.kernels.reference import rangefloat as reference_range
from thinwire.kernels.reference import shares as reference_shares
from thinwire.kernels.reference.packing import unpack
from thinwire.kernels.reference.shares import divided

NUMEL, RANKS, KEY, BASE = 1500, 3, 0x9E3779B97F4A7C15, 2**32 - 700  # positions wrap on the way
_TABLE = (0.0, 0.05, 0.25, 1.0)

SCHEMES: dict[str, tuple[Kind, int, int, Norm]] = {
    "qsgd": ("uniform", 4, 512, "max"),
    "qsgd with short buckets": ("uniform", 3, 100, "max"),
    "ternary": ("uniform", 2, 512, "max"),
    "nuqsgd": ("exponential", 4, 512, "l2"),
    "nuqsgd with long buckets": ("exponential", 8, 1024, "l2"),
    "levels": ("levels", 3, 512, "l2"),
    "sign": ("sign", 1, 512, "max"),
}


class Answer(NamedTuple):
    kernel: str
    right: bool  # whether it has the bits of the reference


def implementation(device: torch.device) -> str:
    """What works on this device."""
    x = torch.empty(1, device=device)
    if gpu_for(x) is not None:
        triton = __import__("triton")
        return f"Triton {triton.__version__}"
    return "compiled" if native_for(x) is not None else "the torch reference"


def numbers() -> Tensor:
    """Ordinary elements, and every kind that kernels get wrong: of each sign, tiny, huge, zero, and not finite."""
    x = torch.randn(NUMEL, generator=torch.Generator().manual_seed(1))
    x[512:1024] *= 1e-41  # subnormal
    odd = [0.0, -0.0, 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38, -3.4028235e38]
    x[100 : 100 + len(odd)] = torch.tensor(odd)
    x[1400] = float("inf")
    return x


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal as bit patterns; all NaN are one, as processors make different ones."""
    a, b = a.cpu(), b.cpu()
    if a.dtype != torch.float32:
        return torch.equal(a, b)
    nan = a.isnan()
    return torch.equal(nan, b.isnan()) and torch.equal(a.view(torch.int32)[~nan], b.view(torch.int32)[~nan])


def scheme_of(name: str, device: torch.device | str = "cpu") -> Scheme:
    kind, bits, bucket, norm = SCHEMES[name]
    return Scheme(kind, bits, bucket, norm, torch.tensor(_TABLE if kind == "levels" else ()).to(device))


def expected(scheme: Scheme, x: Tensor, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The message of x / RANKS by the reference, and `out` with its elements written, and subtracted."""
    n, scales = x.numel(), scheme.scale_bytes(x.numel())
    message = torch.empty(scales + packed_size(n, scheme.bits), dtype=torch.uint8)
    codes, sizes = scheme.reference_symbols(divided(x, RANKS), KEY, BASE)
    reference.pack_into(codes, sizes, scheme.bits, message[:scales], message[scales:])
    plain = unpack(message[scales:], n, scheme.bits)
    written, subtracted = torch.empty(n), out.clone()
    scheme.reference_dequantise(plain, message[:scales], written, False)
    negated = message[:scales].clone().view(torch.float32).neg().view(torch.uint8)
    scheme.reference_dequantise(plain, negated, subtracted, True)
    return message, written, subtracted


def answers(device: torch.device) -> Iterator[Answer]:
    """One answer of each kernel of this device."""
    yield from _quantisers(device)
    yield from _shares(device)
    yield from _symbols(device)


def _shares(device: torch.device) -> Iterator[Answer]:
    for what, x in (("share", numbers().nan_to_num(0.0, 1.0, -1.0)), ("share that is not finite", numbers())):
        residual = torch.randn(NUMEL, generator=torch.Generator().manual_seed(3))
        wanted, got = torch.empty(NUMEL), torch.empty(NUMEL, device=device)
        if not reference_shares.share_into(x, RANKS, residual, wanted):
            wanted.fill_(torch.nan)
        shares.enter_share(x.to(device), RANKS, residual.to(device), got)
        yield Answer(what, same_bits(got, wanted))
        told = shares.finite_flag(x.to(device))
        yield Answer(f"finiteness of a {what}", bool(told) == bool(torch.isfinite(x).all()))


def _symbols(device: torch.device) -> Iterator[Answer]:
    """Packing, range floats and integers of one scale."""
    x = numbers().nan_to_num(0.0, 1.0, -1.0)
    there, out = x.to(device), torch.randn(NUMEL, generator=torch.Generator().manual_seed(4))
    symbols = (x.view(torch.int32) & 0x7F).to(torch.uint8)
    packed = reference_packing.pack(symbols, 7)
    yield Answer("pack", same_bits(packing.pack(symbols.to(device), 7), packed))
    yield Answer("unpack", same_bits(packing.unpack(packed.to(device), NUMEL, 7), symbols))

    grid = reference_range.rangefloat_grid(8, 3, float(x.min()), float(x.max()))
    codes, _ = reference_range.rangefloat_symbols(x, 8, 3, grid, "stochastic", KEY, BASE)
    got = torch.empty(NUMEL + 4, dtype=torch.uint8, device=device)  # 1,500 codes of 8 bits are padded to 1,504
    rangefloat.rangefloat_encode(there, 8, 3, grid, "stochastic", KEY, BASE, got)
    yield Answer("rangefloat: encode", same_bits(got, reference_packing.pack(codes, 8)))
    wanted, sums = out.clone(), out.to(device, copy=True)
    reference_range.rangefloat_dequantise(codes, 8, 3, grid, wanted, True)
    rangefloat.rangefloat_decode(got, 8, 3, grid, sums, True)
    yield Answer("rangefloat: decode", same_bits(sums, wanted))

    small = x.clamp(-1.0, 1.0)
    lanes = reference_integers.integers_encode(divided(small, RANKS), 8, 31, 1.0, 90.0, KEY, BASE)
    room = torch.empty(lanes.numel(), dtype=torch.int32, device=device)
    integers.integers_encode(small.to(device), RANKS, 8, 31, 1.0, 90.0, KEY, BASE, room)
    yield Answer("integers: encode", same_bits(room, lanes))
    wanted, sums = out.clone(), out.to(device, copy=True)
    reference_integers.integers_decode(lanes, 8, 0.03, 1.5, wanted, True)
    integers.integers_decode(room, 8, 0.03, 1.5, sums, True)
    yield Answer("integers: decode", same_bits(sums, wanted))


def _quantisers(device: torch.device) -> Iterator[Answer]:
    x = numbers()
    out = torch.randn(NUMEL, generator=torch.Generator().manual_seed(2))
    for name in SCHEMES:
        scheme = scheme_of(name, device)
        message, written, subtracted = expected(scheme_of(name), x, out)
        room = torch.zeros(message.numel() + 1, dtype=torch.uint8, device=device)[1:]  # not aligned
        scheme.encoder(x.to(device), KEY, BASE, RANKS)(0, NUMEL, room)
        yield Answer(f"{name}: encode", same_bits(room, message))
        room.copy_(message)
        plain, less = torch.empty(NUMEL, device=device), out.to(device, copy=True)
        scheme.decoder(plain)(0, NUMEL, room)
        scheme.decoder(less, "subtract")(0, NUMEL, room)
        yield Answer(f"{name}: decode", same_bits(plain, written) and same_bits(less, subtracted))


def wrong_kernels(device: torch.device) -> list[str]:
    """The Triton kernels that do not give the bits of the reference on this device, or fail; none should."""
    assert loaded() is not None
    try:
        with untested(device):
            return [answer.kernel for answer in answers(device) if not answer.right]
    except Exception as reason:  # Triton and drivers raise errors of their own
        said = str(reason).splitlines()
        return [f"{type(reason).__name__}: {said[0] if said else 'no message'}"]
