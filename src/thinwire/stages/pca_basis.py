"""A PCA basis: a layer laid out as slices, and the projection."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from thinwire.core.context import NEAR_OVERFLOW, Context, State
from thinwire.core.fast import PartCoder, Parts
from thinwire.core.source import Source
from thinwire.kernels import basis as kernels
from thinwire.kernels.modes import Mode, put

WIDEST = 1024  # the longest automatic slice: its decomposition takes about a second on one core
MULTIPLE = 16  # statistics take at most this many times the memory of their layer
WIDEST_ALONE = 4096  # the same for samples of one slice, which are few
_TOGETHER = 1 << 18  # numbers of slices whose energies are taken at once: few operations, on memory of a cache
_LEAST = 16  # numbers of a slice that is one column of a matrix


@dataclass(frozen=True)
class Layout:
    """A layer as a matrix of `count` slices of `length` numbers; the last slice is filled up with zeros.

    In the order "rows" the numbers stay where they are: a slice is one output filter, or a cut of it. In the order
    "filters" the filter index runs fastest, then the input channel, then the position in the kernel, so that the
    gradients that stem from one input value are neighbours.
    """

    shape: tuple[int, ...]
    order: str
    numel: int
    length: int
    count: int

    @property
    def in_place(self) -> bool:
        """The matrix is a view of the layer."""
        return self.order == "rows" and self.count * self.length == self.numel

    def rows(self, x: Tensor) -> Tensor:
        """The slices of a flat layer, [count, length]."""
        if self.order == "filters":
            x = x.view(self.shape).permute(*range(2, len(self.shape)), 1, 0).reshape(-1)
        missing = self.count * self.length - self.numel
        if missing:
            x = torch.nn.functional.pad(x, (0, missing))
        return x.view(self.count, self.length)

    def flat(self, rows: Tensor) -> Tensor:
        """The flat layer of these slices."""
        x = rows.reshape(-1)[: self.numel]
        if self.order == "filters":
            axes = len(self.shape)
            x = x.view(*self.shape[2:], self.shape[1], self.shape[0])
            x = x.permute(axes - 1, axes - 2, *range(axes - 2)).reshape(-1)
        return x


@lru_cache(maxsize=4096)
def layouts(shape: tuple[int, ...], order: str, length: int | None, sample: int, pool: bool) -> tuple[Layout, ...]:
    """The layouts that samples decide between: one, or with the order "auto" one of each order, if they fit.

    In the order "filters" a slice of a matrix is then one column: as good as several, and far shorter.
    """
    if order != "auto":
        found = [lay_out(shape, order, length, sample, pool)]
    else:
        column = shape[0] if len(shape) == 2 and _LEAST <= shape[0] <= WIDEST else None
        found = [
            lay_out(shape, "rows", length, sample, pool),
            lay_out(shape, "filters", length or column, sample, pool),
        ]
    return tuple(layout for layout in found if layout is not None)


@lru_cache(maxsize=4096)
def lay_out(shape: tuple[int, ...], order: str, length: int | None, sample: int, pool: bool) -> Layout | None:
    """The slices of a layer; None if it has fewer than two, or is no matrix."""
    numel = math.prod(shape)
    if len(shape) < 2 or numel < 4:
        return None
    if length is None:
        limit = min(WIDEST, math.isqrt(MULTIPLE * numel)) if pool else min(WIDEST_ALONE, MULTIPLE * numel // sample)
        length = _automatic(shape, order, min(limit, numel // 2))
    count = -(-numel // length)
    return Layout(shape, order, numel, length, count) if count >= 2 and length >= 2 else None


def _automatic(shape: tuple[int, ...], order: str, limit: int) -> int:
    """A whole filter (rows), or all filters of several channels or kernel positions (filters), or an equal cut."""
    numel, filters = math.prod(shape), shape[0]
    if order == "rows":
        return _cut(numel // filters, limit)
    place = filters * shape[1]
    if place <= limit:
        return place * _cut(numel // place, limit // place)
    return filters * _cut(shape[1], limit // filters) if filters <= limit else _cut(filters, limit)


def _cut(length: int, limit: int) -> int:
    """The largest divisor of `length` that is at most `limit`."""
    return next((d for d in range(min(length, limit), 0, -1) if length % d == 0), 1)


# A basis in use.


class Basis(NamedTuple):
    """What the ranks share: orthonormal columns [length, d], the slices' means, their coefficients, the size of
    the largest mean, and which of the possible layouts the slices have.

    Without columns there was nothing to learn, and the numbers pass as they are.
    """

    columns: Tensor | None
    mean: Tensor | None = None
    offset: Tensor | None = None
    reach: float = 0.0
    layout: int = 0


def basis_of(state: State) -> Basis:
    mean = state.get("mean")
    # a state that was saved without it is never certain
    reach = state.get("reach", 0.0 if mean is None else math.inf)
    return Basis(state["basis"], mean, state.get("offset"), reach, state.get("layout", 0))


def coefficients(
    rows: Tensor, basis: Basis, ranks: int, which: slice = slice(None), out: Tensor | None = None
) -> Tensor:
    """U^T (x - mu/P) of each slice: [count, length] -> [count, d]."""
    assert basis.columns is not None
    offset = None if basis.offset is None else basis.offset[which]
    out = rows.new_empty(rows.shape[0], basis.columns.shape[1]) if out is None else out
    return kernels.project(rows, basis.columns, offset, -1 / ranks, out)


def reconstruct(rows: Tensor, basis: Basis, part: float, which: slice, out: Tensor | None = None) -> Tensor:
    """U q + mu * part of each slice: [count, d] -> [count, length]."""
    assert basis.columns is not None
    out = rows.new_empty(rows.shape[0], basis.columns.shape[0]) if out is None else out
    return kernels.rebuild(rows, basis.columns, None if basis.mean is None else basis.mean[which], part, out)


def subtract_slices(rows: Tensor, basis: Basis, part: float, out: Tensor) -> None:
    """out -= U q + mu * part of each slice: [count, d] -> [count, length]."""
    assert basis.columns is not None
    kernels.subtract(rows, basis.columns, basis.mean, part, out)


def decode_slices(layout: Layout, values: Tensor, basis: Basis, ctx: Context, out: Tensor, mode: Mode) -> None:
    """Coefficients of the contributions of some ranks as the elements of a layer, which `out` takes as `mode` says."""
    rows, part = values.view(layout.count, -1), ctx.contributions / ctx.ranks
    if layout.in_place and mode == "subtract":
        subtract_slices(rows, basis, part, out.view(layout.count, layout.length))
        return
    in_place = layout.in_place and mode == "write"
    to = out if in_place else ctx.empty(layout.count * layout.length, out)
    built = reconstruct(rows, basis, part, slice(0, layout.count), to.view(layout.count, layout.length))
    if not in_place:
        put(layout.flat(built), out, mode)


def lost_share(rows: Tensor, basis: Basis, ctx: Context) -> float:
    """The share of the energy of x - mu/P outside the basis, a few slices at a time that stay in a cache."""
    assert basis.columns is not None
    count, length = rows.shape
    some = min(count, max(1, _TOGETHER // length))
    room = ctx.empty(some * length, rows).view(some, length)
    few = ctx.empty(some * basis.columns.shape[1], rows).view(some, -1)
    energy, kept = rows.new_zeros((), dtype=torch.float64), rows.new_zeros((), dtype=torch.float64)
    for low in range(0, count, some):
        which = slice(low, min(low + some, count))
        x, q = rows[which], coefficients(rows[which], basis, ctx.ranks, which, few[: which.stop - low])
        if basis.mean is not None:
            x = torch.sub(x, basis.mean[which], alpha=1 / ctx.ranks, out=room[: which.stop - low])
        energy += torch.dot(x.reshape(-1), x.reshape(-1))
        kept += torch.dot(q.view(-1), q.view(-1))
    return float(1 - kept / energy) if energy > 0 else 0.0


class SliceParts(PartCoder):
    """Sums of the coefficients of some slices at a time."""

    bounded = True

    def __init__(self, layouts: Sequence[Layout], kept: int) -> None:
        self.layouts, self.length = layouts, kept

    def parts(self, x: Source, ctx: Context) -> Parts | None:
        basis: Basis = ctx.shared
        return None if basis.columns is None else Slices(self.layouts[basis.layout], basis, x, ctx)


class Slices(Parts):
    """A layer's slices, encoded and decoded a few at a time."""

    def __init__(self, layout: Layout, basis: Basis, x: Source, ctx: Context) -> None:
        assert basis.columns is not None
        self.length, self.count = basis.columns.shape[1], layout.count
        self.layout, self.basis, self.ctx = layout, basis, ctx
        self.x = x
        self.rows = layout.rows(x.values if layout.in_place else x.tensor())
        self.decoded: Tensor | None = None

    def set_output(self, out: Tensor) -> None:
        self.decoded = out.view_as(self.rows) if self.layout.in_place else torch.empty_like(self.rows)

    def encode(self, low: int, high: int) -> Tensor:
        self.x.range(low * self.layout.length, high * self.layout.length)
        out = self.ctx.empty((high - low) * self.length, self.rows)
        rows, which = self.rows[low:high], slice(low, high)
        return coefficients(rows, self.basis, self.ctx.ranks, which, out.view(-1, self.length)).view(-1)

    def decode(self, values: Tensor, low: int, high: int) -> None:
        assert self.decoded is not None, "set_output comes first"
        rows = values.view(high - low, self.length)
        reconstruct(rows, self.basis, 1.0, slice(low, high), self.decoded[low:high])

    def result(self) -> Tensor:
        assert self.decoded is not None, "set_output comes first"
        return self.layout.flat(self.decoded)

    def certain(self, largest: float) -> bool:
        """Columns of length one make no number larger than all coefficients of its slice together, and the mean's."""
        return largest * self.ctx.ranks * self.length + self.basis.reach < NEAR_OVERFLOW
