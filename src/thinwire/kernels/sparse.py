"""Choosing elements by magnitude, compiled on the CPU and by Triton on GPUs; adding them back, compiled on the CPU.

Torch does the rest.
"""

from typing import Any

import torch
from torch import Tensor

from thinwire.errors import CodecError
from thinwire.kernels.gpu import gpu_for
from thinwire.kernels.gpu.layouts import MOST_SELECTED
from thinwire.kernels.native import native_for
from thinwire.kernels.reference import sparse as reference
from thinwire.kernels.reference.bitstream import MOST_ELEMENTS


def _selection_for(x: Tensor) -> Any:
    """Triton's selection, if it can work on these elements."""
    gpu = gpu_for("selection", x) if x.numel() <= MOST_SELECTED else None
    return None if gpu is None else gpu.select


def largest(x: Tensor, k: int) -> Tensor:  # [numel] -> [k]
    """Ascending positions of exactly k elements of largest magnitude; among equals the first ones."""
    reference.expect_flat(x)
    reference.expect_count(k, x.numel())
    if (gpu := _selection_for(x)) is not None:
        return gpu.largest(x.detach(), k)  # type: ignore[no-any-return]
    native = native_for(x)
    if native is None or x.numel() > MOST_ELEMENTS:
        return reference.largest(x, k)
    if k == x.numel():
        return torch.arange(k)
    out = torch.empty(k, dtype=torch.int64)
    native.largest(x, out)
    return out


def largest_in_chunks(x: Tensor, chunk: int, each: int, rest: int) -> Tensor:  # [numel] -> [count]
    """Ascending positions of the `each` largest of every whole chunk, and of the `rest` largest behind the last one."""
    reference.expect_flat(x)
    reference.expect_count(each, chunk)
    reference.expect_count(rest, x.numel() % chunk)
    if (gpu := _selection_for(x)) is not None:
        return gpu.largest_in_chunks(x.detach(), chunk, each, rest)  # type: ignore[no-any-return]
    native = native_for(x)
    if native is None or chunk > MOST_ELEMENTS:
        return reference.largest_in_chunks(x, chunk, each, rest)
    out = torch.empty(x.numel() // chunk * each + rest, dtype=torch.int64)
    native.largest_in_chunks(x, chunk, each, rest, out)
    return out


def above(x: Tensor, value: float) -> Tensor:  # [numel] -> [count]
    """Ascending positions where |x| > value; NaN lies above everything."""
    reference.expect_flat(x)
    if (gpu := _selection_for(x)) is not None:
        return gpu.above(x.detach(), reference.threshold_key(value))  # type: ignore[no-any-return]
    native = native_for(x)
    if native is None:
        return reference.above(x, value)
    key = reference.threshold_key(value)
    if key < 0:
        return torch.arange(x.numel())
    out = torch.empty(native.count_above(x, key), dtype=torch.int64)
    native.write_above(x, key, out)
    return out


def scatter_add(out: Tensor, indices: Tensor, values: Tensor, group: int = 1) -> None:
    """out[indices[i]] += values[i], in place; positions are unique, and stand for `group` neighbours each."""
    native = native_for(out, indices, values)
    if native is None:
        reference.scatter_add(out, indices, values, group)
    else:
        native.scatter_add(out, indices, values, group)


def scatter(given: Tensor | None, indices: Tensor, values: Tensor, out: Tensor, group: int = 1) -> None:
    """out = given, or zeros without it, with values added at their positions, which are unique.

    A position stands for `group` neighbours. One pass over memory if positions ascend. `out` shares no memory with
    `given`.
    """
    if given is not None and (given.shape != out.shape or given.dtype != out.dtype):
        raise CodecError(f"what is scattered into {tuple(out.shape)} must have this shape, not {tuple(given.shape)}.")
    native = native_for(out, indices, values, *([] if given is None else [given]))
    if native is None or out.dtype != torch.float32:
        reference.scatter(given, indices, values, out, group)
    elif not native.scatter(0 if given is None else given.data_ptr(), indices, values, out, group):
        native.scatter_add(out.zero_() if given is None else out.copy_(given), indices, values, group)


def gather(x: Tensor, indices: Tensor, out: Tensor, group: int = 1) -> None:
    """The values at these positions, which stand for `group` neighbours each."""
    native = native_for(x, indices, out)
    if native is None:
        reference.gather(x, indices, out, group)
    else:
        native.gather(x, indices, out, group)


def squared_lengths(x: Tensor, out: Tensor) -> bool:  # [2n], [n]
    """x[2i]^2 + x[2i+1]^2; whether they order pairs as their lengths do, which very large and small ones do not."""
    native = native_for(x, out)
    if native is None:
        return reference.squared_lengths(x, out)
    low, high = reference.SQUARES
    largest: int = native.squared_lengths(x, out)
    return low < largest < high


def union(a: Tensor, b: Tensor) -> Tensor:
    """Ascending positions that are in a or b, both ascending and without repetition."""
    native = native_for(a, b)
    if native is None:
        return reference.union(a, b)
    out = torch.empty(a.numel() + b.numel(), dtype=torch.int64)
    return out[: native.union_ascending(a, b, out)]
