"""Checks of the tensors that callers pass in, before anything is changed.

The kernels read and write memory by its address. A tensor whose memory is not what its shape and type say (a shard, a
sparse tensor, a tensor without data) would make them read elsewhere, so that every entry point refuses it here.
"""

from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch

from thinwire.errors import CodecError, ThinwireError

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
FLOAT_NAMES = "float32, float64, float16 or bfloat16"


def check_dense(what: str, tensor: Any, error: type[ThinwireError] = CodecError) -> None:
    """Refuse everything that is not a plain dense tensor; parameters are plain."""
    if not isinstance(tensor, Tensor):
        raise error(f"{what} must be a tensor; got {type(tensor).__name__}.")
    special = _special(tensor)
    if special is not None:
        kind, remedy = special
        raise error(f"{what} must be a plain dense tensor; got {kind}; {remedy}.")


def check_floats(what: str, tensor: Any) -> None:
    """Refuse everything that is not a plain dense tensor of floating-point numbers."""
    check_dense(what, tensor)
    if tensor.dtype not in FLOATS:
        remedy = "use torch.view_as_real" if tensor.dtype.is_complex else "convert it with .float()"
        raise CodecError(f"{what} must be of type {FLOAT_NAMES}; got {tensor.dtype}; {remedy}.")


def check_weights(weights: Any, tensor: Tensor) -> None:
    check_floats("weights", weights)
    if weights.shape != tensor.shape or weights.device != tensor.device:
        raise CodecError(
            f"weights must have the gradient's shape {tuple(tensor.shape)} and be on {tensor.device};"
            f" got {tuple(weights.shape)} on {weights.device}."
        )


def check_out(out: Any, tensor: Tensor) -> None:
    check_dense("out", out)
    if out.shape != tensor.shape or out.dtype != tensor.dtype or out.device != tensor.device:
        raise CodecError(
            f"out must be like the tensor, {tensor.dtype} {tuple(tensor.shape)} on {tensor.device};"
            f" got {out.dtype} {tuple(out.shape)} on {out.device}."
        )
    check_separate("out", out)


def check_separate(what: str, out: Tensor) -> None:
    """Refuse a result whose elements share memory, as those of an expanded tensor do."""
    if out.is_contiguous():
        return
    if any(stride == 0 and extent > 1 for stride, extent in zip(out.stride(), out.shape, strict=True)):
        raise CodecError(f"{what} must have memory for each of its elements; got an expanded tensor; clone it first.")


def check_message(message: Any, numel: int, out: Any) -> None:
    """Refuse what cannot be decoded: `out` is memory for the elements, or None."""
    check_dense("a message", message)
    if message.dtype != torch.uint8 or message.dim() != 1:
        raise CodecError(f"a message is a flat uint8 tensor; got {message.dtype} of shape {tuple(message.shape)}.")
    if numel < 0:
        raise CodecError(f"numel must be at least 0; got {numel}.")
    if out is None:
        return
    check_dense("out", out)
    if out.numel() != numel or out.dtype != torch.float32 or out.dim() != 1:
        raise CodecError(
            f"out must be a flat float32 tensor of {numel} numbers; got {out.dtype} of shape {tuple(out.shape)}."
        )
    check_separate("out", out)


def _special(tensor: Tensor) -> tuple[str, str] | None:
    """What is special about the memory of a tensor, and the remedy; None: it is plain and dense."""
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        local = hasattr(tensor, "to_local")
        return f"a {type(tensor).__name__}", "pass its local part, x.to_local()" if local else "pass a torch.Tensor"
    if _functorch.is_functorch_wrapped_tensor(tensor):
        return "a tensor inside a transform of torch.func", "call thinwire outside of it"
    if tensor.is_nested:
        return "a nested tensor", "pass its parts one by one"
    if tensor.layout is not torch.strided:
        return f"one of layout {str(tensor.layout).removeprefix('torch.')}", "convert it with .to_dense()"
    if tensor.is_quantized:
        return "a quantised tensor", "convert it with .dequantize()"
    if tensor.is_meta:
        return "a meta tensor, which has no data", "create it on a device"
    if tensor.is_neg() or tensor.is_conj():
        return "a view that is negated or conjugated when it is read", "call .resolve_neg() and .resolve_conj() on it"
    if tensor.numel() and not tensor.data_ptr():
        return "a tensor without memory", "clone it, or wait until its memory is there"
    return None
