"""float16 and bfloat16 as bytes, compiled where possible; `reference.casts` says what they compute."""

import torch
from torch import Tensor

from thinwire.errors import CodecError, WireError
from thinwire.kernels.native import native_for, threads_for
from thinwire.kernels.reference import casts as reference

_BRAIN = {torch.float16: False, torch.bfloat16: True}


def _check(numbers: Tensor, dtype: torch.dtype, message: Tensor) -> None:
    if dtype not in _BRAIN:
        raise CodecError(f"numbers are shortened to float16 or bfloat16, not {dtype}")
    if numbers.dtype != torch.float32 or numbers.dim() != 1:
        raise CodecError(f"casts take float32 vectors, not {numbers.dtype} in {numbers.dim()} dimensions; flatten them")
    if message.dtype != torch.uint8 or message.numel() != 2 * numbers.numel():
        raise WireError(
            f"{numbers.numel()} numbers of 16 bits are {2 * numbers.numel()} bytes, but {message.numel()} of"
            f" {message.dtype} came; the message is truncated or of another codec"
        )


def cast_into(x: Tensor, dtype: torch.dtype, message: Tensor) -> None:
    """x rounded to float16 or bfloat16, as bytes at any address."""
    _check(x, dtype, message)
    native = native_for(x, message)
    if native is None:
        reference.cast_into(x, dtype, message)
    else:
        native.shorten(x.data_ptr(), x.numel(), _BRAIN[dtype], message.data_ptr(), threads_for(x.numel()))


def cast_from(message: Tensor, dtype: torch.dtype, out: Tensor, add: bool) -> None:
    """The numbers of such bytes, written to `out` or added to it."""
    _check(out, dtype, message)
    native = native_for(message, out)
    if native is None:
        reference.cast_from(message, dtype, out, add)
    else:
        native.lengthen(message.data_ptr(), out.numel(), _BRAIN[dtype], out.data_ptr(), add, threads_for(out.numel()))
