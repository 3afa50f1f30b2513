"""Shorter floats as bytes: the specification of `thinwire.kernels.casts`."""

import torch
from torch import Tensor


def cast_into(x: Tensor, dtype: torch.dtype, message: Tensor) -> None:
    """x rounded to `dtype`, to the nearest with ties to even, as bytes; which NaN a NaN becomes is left open."""
    message.copy_(x.to(dtype).view(torch.uint8))


def cast_from(message: Tensor, dtype: torch.dtype, out: Tensor, add: bool) -> None:
    """The numbers of such bytes, written to `out` or added to it."""
    aligned = message if message.storage_offset() % dtype.itemsize == 0 else message.clone()
    values = aligned.view(dtype)
    out.add_(values) if add else out.copy_(values)
