"""Choosing elements by magnitude and adding them back, in torch for any device."""

import torch
from torch import Tensor

from thinwire.errors import CodecError

SQUARES = (0x12800000, 0x7F800000)  # between these keys, of 2^-90 and of infinity, lies a largest square to choose by


def magnitude_keys(x: Tensor) -> Tensor:
    """Magnitudes as integers of the same order: 0 < finite < inf < NaN."""
    return x.contiguous().view(torch.int32) & 0x7FFFFFFF


def expect_flat(x: Tensor) -> None:
    """Selection works on the flat float32 values of a tensor."""
    if x.dtype != torch.float32 or x.dim() != 1:
        raise CodecError(
            f"Selection needs a flat float32 tensor, not {x.dtype} of {x.dim()} dimensions; convert it first."
        )


def expect_count(k: int, numel: int) -> None:
    """Nobody can choose more elements than there are."""
    if not 0 <= k <= numel:
        raise CodecError(f"Cannot choose {k} of {numel} elements; ask for 0 to {numel}.")


def largest(x: Tensor, k: int) -> Tensor:  # [numel] -> [k]
    """Ascending positions of exactly k elements of largest magnitude; among equals the first ones."""
    expect_flat(x)
    expect_count(k, x.numel())
    if k == 0:
        return torch.empty(0, dtype=torch.int64, device=x.device)
    keys = magnitude_keys(x)
    last = keys.topk(k, sorted=False).values.min()
    above = keys > last
    equal = keys == last
    ties = k - above.sum()
    return (above | equal & (equal.cumsum(0) <= ties)).nonzero().view(-1)


def largest_in_chunks(x: Tensor, chunk: int, each: int, rest: int) -> Tensor:  # [numel] -> [count]
    """Ascending positions of the `each` largest of every whole chunk, and of the `rest` largest behind the last one."""
    whole = x.numel() // chunk
    keys = magnitude_keys(x[: whole * chunk]).view(whole, chunk)
    chosen = torch.zeros_like(keys, dtype=torch.bool)
    if each and whole:
        last = keys.topk(each, dim=1, sorted=False).values.amin(1, keepdim=True)
        above, equal = keys > last, keys == last
        chosen = above | equal & (equal.cumsum(1) <= each - above.sum(1, keepdim=True))
    tail = largest(x[whole * chunk :], rest) + whole * chunk
    return torch.cat([chosen.view(-1).nonzero().view(-1), tail])


def threshold_key(value: float) -> int:
    """The key of a threshold, -1 where every magnitude lies above it (negative, NaN)."""
    threshold = torch.tensor(value, dtype=torch.float32)
    return int(magnitude_keys(threshold.view(1))) if float(threshold) >= 0 else -1


def above(x: Tensor, value: float) -> Tensor:  # [numel] -> [count]
    """Ascending positions where |x| > value (value rounded to float32); NaN lies above everything."""
    expect_flat(x)
    return (magnitude_keys(x) > threshold_key(value)).nonzero().view(-1)


def expect_places(indices: Tensor, groups: int, values: int, group: int) -> None:
    """Positions lie inside the tensor, and each has as many values as a group.

    Positions on a device are not looked at, because that would wait for it: they were chosen there, or checked by
    `unpack_indices` on the CPU.
    """
    outside = indices.is_cpu and indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < groups
    if indices.numel() * group != values or outside:
        raise CodecError("Every value needs a position inside the tensor; check indices and values.")


def scatter_add(out: Tensor, indices: Tensor, values: Tensor, group: int = 1) -> None:
    """out[indices[i]] += values[i], in place; positions are unique, and stand for `group` neighbours each."""
    groups = out.numel() // group
    expect_places(indices, groups, values.numel(), group)
    out[: groups * group].view(groups, group).index_add_(0, indices, values.view(-1, group))


def scatter(given: Tensor | None, indices: Tensor, values: Tensor, out: Tensor, group: int = 1) -> None:
    """out = given, or zeros without it, with values[i] added at indices[i]; positions are unique."""
    expect_places(indices, out.numel() // group, values.numel(), group)
    scatter_add(out.zero_() if given is None else out.copy_(given), indices, values, group)


def gather(x: Tensor, indices: Tensor, out: Tensor, group: int = 1) -> None:
    """The values at these positions, which stand for `group` neighbours each."""
    groups = x.numel() // group
    expect_places(indices, groups, out.numel(), group)
    out.copy_(x[: groups * group].view(groups, group).index_select(0, indices).view(-1))


def squared_lengths(x: Tensor, out: Tensor) -> bool:  # [2n], [n]
    """x[2i]^2 + x[2i+1]^2, each step rounded; whether the largest square leaves room for smaller ones."""
    out.copy_(x[0::2] * x[0::2]).add_(x[1::2] * x[1::2])
    return x.numel() > 0 and SQUARES[0] < int(magnitude_keys(out).max()) < SQUARES[1]


def union(a: Tensor, b: Tensor) -> Tensor:
    """Ascending positions that are in a or b, both ascending and without repetition."""
    positions: Tensor = torch.unique(torch.cat([a, b]))
    return positions
