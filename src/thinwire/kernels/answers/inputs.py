"""What the known answers are about: elements of every kind, and how answers are compared."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

NUMEL, RANKS, KEY, BASE = 1500, 3, 0x9E3779B97F4A7C15, 2**32 - 700  # positions wrap on the way

Check: TypeAlias = tuple[str, Callable[[], bool]]  # a kernel, and whether it has the bits of the reference
Work: TypeAlias = tuple[str, Callable[[], object]]  # a kernel, and one run of it


def numbers() -> Tensor:
    """Ordinary elements, and every kind that kernels get wrong: of each sign, tiny, huge, zero, and not finite."""
    x = torch.randn(NUMEL, generator=torch.Generator().manual_seed(1))
    x[512:1024] *= 1e-41  # subnormal
    odd = [0.0, -0.0, 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38, -3.4028235e38]
    x[100 : 100 + len(odd)] = torch.tensor(odd)
    x[1400] = float("inf")
    return x


def finite_numbers() -> Tensor:
    return numbers().nan_to_num(0.0, 1.0, -1.0)


def ordinary(seed: int) -> Tensor:
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(seed))


def unaligned(data: Tensor, device: torch.device, offset: int = 1) -> Tensor:
    """A copy at an address that is no multiple of 16, as messages may lie."""
    room = torch.zeros(data.numel() + offset, dtype=data.dtype, device=device)[offset:]
    return room.copy_(data)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal as bit patterns; all NaN are one, as processors make different ones."""
    a, b = a.cpu(), b.cpu()
    if a.dtype != torch.float32:
        return torch.equal(a, b)
    nan = a.isnan()
    return torch.equal(nan, b.isnan()) and torch.equal(a.view(torch.int32)[~nan], b.view(torch.int32)[~nan])
