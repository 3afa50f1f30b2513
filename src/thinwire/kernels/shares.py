"""A rank's share of a mean, and whether numbers are finite: one pass over memory on the CPU, torch elsewhere."""

import struct
from collections.abc import Iterable

import torch
from torch import Tensor

from thinwire.errors import CodecError, WireError
from thinwire.kernels.gpu import gpu_for
from thinwire.kernels.native import native_for, threads_for
from thinwire.kernels.reference import shares as reference
from thinwire.kernels.reference.shares import divided

__all__ = [
    "all_finite",
    "all_true",
    "check_ranks",
    "divided",
    "enter_share",
    "finite_flag",
    "finiteness",
    "largest_magnitude",
    "magnitude",
    "magnitude_in",
    "share_into",
]

_INFINITY = 0x7F800000  # the bit pattern; those of finite magnitudes lie below, those of NaN above
_MOST_RANKS = 2**24  # whole numbers up to here are float32 as they are


def check_ranks(ranks: int) -> None:
    if not 1 <= ranks <= _MOST_RANKS:
        raise CodecError(f"a mean is taken over 1 to {_MOST_RANKS} ranks, not {ranks}")


def share_into(x: Tensor, ranks: int, residual: Tensor | None, out: Tensor) -> bool:
    """out = x / ranks (+ residual) in float32, all of one shape; whether every x / ranks is finite.

    `out` shares no memory with the other two.
    """
    return _share_into(_checked_share(x, ranks, residual, out), x, ranks, residual, out)


def _share_into(plain: tuple[Tensor, ...] | None, x: Tensor, ranks: int, residual: Tensor | None, out: Tensor) -> bool:
    native = None if plain is None else native_for(*plain)
    if native is None:
        return bool(reference.share_into(x, ranks, residual, out))
    held, threads = 0 if residual is None else residual.data_ptr(), threads_for(x.numel())
    finite: bool = native.share_into(x.data_ptr(), x.numel(), ranks, held, out.data_ptr(), threads)
    return finite


def enter_share(x: Tensor, ranks: int, residual: Tensor | None, out: Tensor) -> None:
    """`share_into`, with NaN throughout `out` if any x / ranks is not finite.

    Whatever a chain selects of it, the others see it. An accelerator decides that by itself.
    """
    plain = _checked_share(x, ranks, residual, out)
    if plain is not None and (gpu := gpu_for("shares", *plain)) is not None:
        gpu.shares.enter_share(x.detach(), ranks, residual, out)
    elif not out.is_cpu:
        out.masked_fill_(~reference.share_into(x, ranks, residual, out), float("nan"))
    elif not _share_into(plain, x, ranks, residual, out):
        out.fill_(float("nan"))


def _checked_share(x: Tensor, ranks: int, residual: Tensor | None, out: Tensor) -> tuple[Tensor, ...] | None:
    """All tensors, if they are float32; None: kernels cannot take them."""
    check_ranks(ranks)
    given = (x, out) if residual is None else (x, out, residual)
    shape, plain = out.shape, True
    for tensor in given:
        if out.dtype != torch.float32 or tensor.shape != shape:
            shapes = ", ".join(f"{tuple(t.shape)} of {t.dtype}" for t in given)
            raise CodecError(f"a share is float32 and of the shape of what it is made from, not {shapes}")
        plain = plain and tensor.dtype == torch.float32
    return given if plain else None


def all_finite(x: Tensor) -> bool:
    """Whether there is no infinity and no NaN."""
    native = native_for(x) if x.dtype == torch.float32 else None
    if native is None:
        return reference.all_finite(x)
    largest: int = native.magnitude(x.data_ptr(), x.numel(), threads_for(x.numel()))
    return largest < _INFINITY


def finite_flag(x: Tensor) -> Tensor:
    """The same as a tensor of one bool on the device of x, for which nobody waits."""
    gpu = gpu_for("shares", x) if x.dtype == torch.float32 else None
    found: Tensor = reference.finite_flag(x) if gpu is None else gpu.shares.finite_flag(x.detach())
    return found


def finiteness(x: Tensor) -> bool | Tensor:
    """`all_finite` on the CPU; elsewhere `finite_flag`, so that nobody waits for the device."""
    return all_finite(x) if x.is_cpu else finite_flag(x)


def all_true(found: Iterable[bool | Tensor]) -> bool:
    """Whether all these are true; waits once for each device that holds some of them."""
    flags: dict[torch.device, list[Tensor]] = {}
    for each in found:
        if isinstance(each, Tensor):
            flags.setdefault(each.device, []).append(each)
        elif not each:
            return False
    return all(bool(torch.stack(together).all()) for together in flags.values())


def magnitude(x: Tensor) -> float:
    """max |x|, 0 for none, infinite if anything is not finite."""
    native = native_for(x) if x.dtype == torch.float32 else None
    if native is None:
        return float(reference.largest_magnitude(x))
    return _as_float(native.magnitude(x.data_ptr(), x.numel(), threads_for(x.numel())))


def magnitude_in(message: Tensor, numbers: int) -> float:
    """max |x| of the first so many fp32 numbers in these bytes, 0 for none, infinite if anything is not finite."""
    if message.numel() < 4 * numbers:
        raise WireError(f"{numbers} numbers are {4 * numbers} bytes; the message has {message.numel()}.")
    native = native_for(message)
    if native is None or message.data_ptr() % 4:
        return magnitude(message[: 4 * numbers].clone().view(torch.float32))
    largest: int = native.magnitude(message.data_ptr(), numbers, 1)
    return _as_float(largest)


def _as_float(magnitude: int) -> float:
    """The number of a bit pattern; of that of NaN, infinity."""
    value: float = struct.unpack("<f", struct.pack("<I", min(magnitude, _INFINITY)))[0]
    return value


def largest_magnitude(x: Tensor) -> Tensor:
    """The same as a tensor of one number on the device of x."""
    if native_for(x) is None:
        return reference.largest_magnitude(x)
    return torch.tensor([magnitude(x)])
