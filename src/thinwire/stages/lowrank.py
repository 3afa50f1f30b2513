"""Gradient matrices as products of two thin factors: PowerSGD."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from thinwire.core.checks import expect_tensor, expect_unit
from thinwire.core.context import NEAR_OVERFLOW, Context, State
from thinwire.core.fast import FastPath
from thinwire.core.ops import AllReduce, Rounds
from thinwire.core.options import number, switch
from thinwire.core.source import Source
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import Encoded, Stage, Transform
from thinwire.kernels.basis import rebuild, subtract
from thinwire.kernels.modes import Mode
from thinwire.kernels.reference.hashing import hash32, uniform24
from thinwire.kernels.shares import largest_magnitude, magnitude

_NEGLIGIBLE = 1e-5  # a direction with less than this share of the largest one is rounding noise
_TINY, _HUGE = 1e-9, 1e15  # squares of magnitudes between them are fp32, and so are those of what is left by rounding


@dataclass(frozen=True, repr=False)
class PowerSGD(Transform):
    """One step of subspace iteration: the mean M of the ranks' matrices becomes A (M^T A)^T of rank `rank`.

    The ranks sum their M_k Q, and A is an orthonormal basis of the sum; then they sum their M_k^T A, which is linear
    in M_k. M^T A, its columns normalised, is the next step's Q (warm start), so that A follows the leading singular
    vectors. Negligible columns of it are drawn anew; both lie column after column. A matrix has the rows of the
    tensor's first dimension; tensors of one dimension and those that would shrink less than `least` times travel
    plain, as all do in the first `warmup` steps. Two dependent all-reduces; r (rows + columns) numbers. Vogels et
    al., NeurIPS 2019.

    `alternate`: one factor a step, in one all-reduce of r rows or r columns numbers. In even steps the ranks sum M_k B,
    in odd ones A^T M_k, where A or B is an orthonormal basis of the sum of the step before. Zhang et al., ICDCS 2023
    (ACP-SGD).
    """

    name: ClassVar[str] = "powersgd"
    portable: ClassVar[bool] = False  # torch's matrix products
    shown: ClassVar[tuple[str, ...]] = ("rank",)

    rank: int = number(4, low=1, high=4096, whole=True, help="columns of each factor")
    warmup: int = number(0, low=0, high=2**40, whole=True, help="steps that travel plain before compression")
    least: float = number(2.0, low=1.0, high=1e9, help="compression below which a tensor travels plain")
    alternate: bool = switch(False, help="one factor in each step, in one round")

    @property
    def rounds(self) -> int:  # type: ignore[override]  # of an option here
        return 0 if self.alternate else 1

    def declines(self, spec: Spec) -> str | None:
        """Factors need a matrix that they make `least` times smaller."""
        if len(spec.shape) < 2:
            return "it is no matrix"
        if spec.numel == 0:
            return "it is empty"
        rows, columns, rank = self.factors(spec)
        return None if spec.numel >= self.least * rank * (rows + columns) else f"too small for rank {self.rank}"

    def factors(self, spec: Spec) -> tuple[int, int, int]:
        """Rows, columns and rank."""
        rows, columns = spec.shape[0], spec.numel // spec.shape[0]
        return rows, columns, min(self.rank, rows, columns)

    def out(self, spec: Spec) -> Spec:
        if self.declines(spec) is not None:
            return spec.numbers(spec.numel)
        rows, columns, rank = self.factors(spec)
        if self.alternate:  # rows in one step and columns in the next
            return spec.numbers((rows + columns) * rank // 2, exact=rows == columns)
        return spec.numbers(columns * rank)

    def by_columns(self, state: State) -> bool:
        """Whether a basis of the columns' space is given in this step, and the factor of the rows is summed."""
        return bool(self.alternate and state["steps"] % 2 == 0)

    def agreement(self, spec: Spec, ranks: int) -> Size:
        rows, _, rank = self.factors(spec)
        if self.alternate:
            return Size(0)
        return Size(2 * (ranks - 1) * -(-rows * rank // ranks) * 4)

    def init(self, spec: Spec) -> State:
        return {"steps": 0}

    def check_state(self, state: State, spec: Spec) -> None:
        super().check_state({key: value for key, value in state.items() if key != "q"}, spec)
        if "q" in state:
            rows, columns, rank = self.factors(spec) if self.declines(spec) is None else (0, 0, 0)
            length = rows if self.alternate and not self.by_columns(state) else columns
            expect_unit(f"'q' of {self}", expect_tensor(f"'q' of {self}", state["q"], (rank, length)), dim=1)

    def instead(self, state: State, spec: Spec) -> tuple[Stage, ...] | None:
        ready = self.declines(spec) is None and ("steady" in state or state["steps"] >= self.warmup)
        return None if ready else ()

    def agree(self, x: Source, ctx: Context) -> Rounds[Any]:
        """An orthonormal basis A of the sum of all M_k Q, from the same bits on every rank."""
        rows, columns, rank = self.factors(ctx.spec)
        q = ctx.state.get("q")
        if self.alternate:
            ctx.stash = {}
            length = columns if self.by_columns(ctx.state) else rows
            if q is None:
                return orthonormal(random_rows(ctx.shared_key(), length, rank, x.values.device))
            return q.T.contiguous()
        if q is None:
            q = unit_rows(random_rows(ctx.shared_key(), rank, columns, x.values.device))
        (summed,) = yield AllReduce([(x.tensor().reshape(rows, columns) @ q.T).view(-1)])
        ctx.stash = {}
        return orthonormal(summed.view(rows, rank))

    def encode(self, x: Tensor, ctx: Context) -> Encoded:
        """A^T M, row by row. M^T A and Q by columns would take torch's products several times as long."""
        rows, columns, _ = self.factors(ctx.spec)
        if self.by_columns(ctx.state):
            return Encoded((x.reshape(rows, columns) @ ctx.shared).view(-1))
        return Encoded((ctx.shared.T @ x.reshape(rows, columns)).view(-1))

    def decode(self, encoded: Encoded, ctx: Context, out: Tensor, mode: Mode = "write") -> None:
        rows, columns, rank = self.factors(ctx.spec)
        left, right = ctx.shared, encoded.values
        if self.by_columns(ctx.state):
            left, right = encoded.values.view(rows, rank), ctx.shared.T
        factor = right.view(rank, columns) if right is encoded.values else left.T
        if ctx.stash is not None and ctx.contributions == ctx.ranks:
            ctx.stash.setdefault("factor", factor)
        matrix, right = out.view(rows, columns), right.reshape(rank, columns)
        if mode == "write":
            rebuild(left, right.T, None, 0.0, out=matrix)
        elif mode == "add":
            matrix.addmm_(left, right)
        else:
            subtract(left, right.T, None, 0.0, matrix)

    def fast(self, spec: Spec) -> FastPath:
        return FactorBound(self)

    def observe(self, mean: Tensor, ctx: Context) -> None:
        ctx.state["steps"] += 1
        if ctx.stash is not None and self.alternate:
            ctx.state["q"] = orthonormal(ctx.stash["factor"].T).T.contiguous()
        elif ctx.stash is not None:
            factor = ctx.stash["factor"]
            key, (rank, columns) = ctx.shared_key(), factor.shape
            ctx.state["q"] = unit_rows(factor, lambda: random_rows(key, rank, columns, factor.device))


class FactorBound(FastPath):
    """Columns of length one make no element larger than all of a factor's row together."""

    def __init__(self, stage: PowerSGD) -> None:
        self.stage = stage

    def finite(self, data: Tensor, ctx: Context) -> bool | None:
        largest = magnitude(data) * self.stage.rank
        return largest < math.inf if largest < NEAR_OVERFLOW or largest == math.inf else None

    def selects(self, ctx: Context) -> bool:
        return not self.stage.alternate  # there the factor before belongs to the other side

    def select(self, finite: Tensor, mean: Tensor, ctx: Context) -> None:
        before = ctx.state.get("q")
        self.stage.observe(mean, ctx)
        if (q := ctx.state.get("q")) is not None and q is not before:
            if before is None:
                rank, columns = q.shape
                before = unit_rows(random_rows(ctx.shared_key(), rank, columns, q.device))
            ctx.state["q"] = torch.where(finite, q, before)


def random_rows(key: int, rows: int, columns: int, device: torch.device) -> Tensor:
    """Entries uniform in [-1/2, 1/2), equal on every rank and device."""
    return uniform24(hash32(key, 0, rows * columns, device)).view(rows, columns) - 0.5


def unit_rows(matrix: Tensor, instead: Callable[[], Tensor] | None = None) -> Tensor:
    """Rows of norm 1; negligible ones are replaced by those of `instead`."""
    norms: Tensor = torch.linalg.vector_norm(matrix, dim=1, keepdim=True, dtype=torch.float64)
    least = _NEGLIGIBLE * norms.amax() if norms.numel() else norms
    if instead is not None and (not norms.is_cpu or bool((norms <= least).any())):  # elsewhere, nobody looks
        matrix = torch.where(norms <= least, instead(), matrix)
        norms = torch.linalg.vector_norm(matrix, dim=1, keepdim=True, dtype=torch.float64)
    return (matrix / norms.clamp_min(1e-300)).float()


def orthonormal(matrix: Tensor) -> Tensor:
    """Orthonormal columns whose span contains the matrix's; NaN throughout if it is not finite.

    Householder reflections give them for dependent and zero columns too. Those of a tiny or huge matrix are first
    brought to a largest magnitude of 1, so that their lengths do not leave the range of fp32.
    """
    if not matrix.is_cpu:
        return _orthonormal_unseen(matrix)
    largest = magnitude(matrix)
    if largest == math.inf:
        return torch.full_like(matrix, float("nan"))
    if not _TINY < largest < _HUGE:
        matrix = matrix / _column_sizes(matrix)
    basis: Tensor = torch.linalg.qr(matrix).Q
    return basis.contiguous()


def _orthonormal_unseen(matrix: Tensor) -> Tensor:
    """The same, and the same bits, where to look at an element is to wait for the device."""
    largest = largest_magnitude(matrix)
    finite, usual = largest < math.inf, (largest > _TINY) & (largest < _HUGE)
    matrix = matrix.masked_fill(~finite, 0.0)
    basis: Tensor = torch.linalg.qr(matrix / torch.where(usual, 1.0, _column_sizes(matrix))).Q
    return basis.masked_fill(~finite, float("nan")).contiguous()


def _column_sizes(matrix: Tensor) -> Tensor:
    """The largest magnitude of each column; 1 for zeros."""
    sizes = matrix.abs().amax(0)
    return torch.where(sizes > 0, sizes, torch.ones_like(sizes))
