"""Gradient matrices as products of two thin factors: PowerSGD."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from thinwire.core.ops import AllReduce, Rounds
from thinwire.core.options import number
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import NEAR_OVERFLOW, Encoded, Scene, Stage, State
from thinwire.kernels.reference.hashing import hash32, uniform24
from thinwire.kernels.shares import magnitude

_NEGLIGIBLE = 1e-5  # a direction with less than this share of the largest one is rounding noise


@dataclass(frozen=True, repr=False)
class PowerSGD(Stage):
    """One step of subspace iteration: the mean M of the ranks' matrices becomes A (M^T A)^T of rank `rank`.

    The ranks sum their M_k Q, and A is an orthonormal basis of the sum; then they sum their M_k^T A, which is linear
    in M_k. M^T A, its columns normalised, is the next step's Q (warm start), so that A follows the leading singular
    vectors. Negligible columns of it are drawn anew. A matrix has the rows of the tensor's first dimension; tensors
    of one dimension and those that would shrink less than `least` times travel plain, as all do in the first `warmup`
    steps. Two dependent all-reduces; r (rows + columns) numbers. Vogels et al., NeurIPS 2019.
    """

    name: ClassVar[str] = "powersgd"
    additive: ClassVar[bool] = True
    wire: ClassVar[bool] = False
    rounds: ClassVar[int] = 1
    shown: ClassVar[tuple[str, ...]] = ("rank",)

    rank: int = number(4, low=1, high=4096, whole=True, help="columns of each factor")
    warmup: int = number(0, low=0, high=2**40, whole=True, help="steps that travel plain before compression")
    least: float = number(2.0, low=1.0, high=1e9, help="compression below which a tensor travels plain")

    def fits(self, spec: Spec) -> bool:
        """A matrix that the factors make `least` times smaller."""
        if len(spec.shape) < 2 or spec.numel == 0:
            return False
        rows, columns, rank = self.factors(spec)
        return spec.numel >= self.least * rank * (rows + columns)

    def factors(self, spec: Spec) -> tuple[int, int, int]:
        """Rows, columns and rank."""
        rows, columns = spec.shape[0], spec.numel // spec.shape[0]
        return rows, columns, min(self.rank, rows, columns)

    def out(self, spec: Spec) -> Spec:
        if not self.fits(spec):
            return spec.numbers(spec.numel)
        _, columns, rank = self.factors(spec)
        return spec.numbers(columns * rank)

    def agreement(self, spec: Spec, ranks: int) -> Size:
        rows, _, rank = self.factors(spec)
        return Size(2 * (ranks - 1) * -(-rows * rank // ranks) * 4)

    def init(self, spec: Spec) -> State:
        return {"steps": 0}

    def ready(self, state: State, spec: Spec) -> bool:
        return self.fits(spec) and ("steady" in state or state["steps"] >= self.warmup)

    def agree(self, x: Tensor, scene: Scene) -> Rounds[Any]:
        """An orthonormal basis A of the sum of all M_k Q, from the same bits on every rank."""
        rows, columns, rank = self.factors(scene.spec)
        q = scene.state.get("q")
        if q is None:
            q = unit_columns(random_matrix(scene.shared_key(), columns, rank, x.device))
        (summed,) = yield AllReduce([(x.reshape(rows, columns) @ q).view(-1)])
        scene.stash = {}
        return orthonormal(summed.view(rows, rank))

    def encode(self, x: Tensor, scene: Scene) -> Encoded:
        rows, columns, _ = self.factors(scene.spec)
        return Encoded((x.reshape(rows, columns).T @ scene.context).view(-1))

    def decode(self, encoded: Encoded, scene: Scene, out: Tensor, add: bool = False) -> None:
        rows, columns, rank = self.factors(scene.spec)
        factor = encoded.values.view(columns, rank)
        if scene.stash is not None and scene.contributions == scene.ranks:
            scene.stash.setdefault("factor", factor)
        matrix = out.view(rows, columns)
        if add:
            matrix.addmm_(scene.context, factor.T)
        else:
            torch.mm(scene.context, factor.T, out=matrix)

    def undelivered(self, given: Tensor, own: Tensor, scene: Scene, out: Tensor) -> bool:
        rows, columns, rank = self.factors(scene.spec)
        matrix, factor = given.view(rows, columns), own.view(columns, rank)
        torch.addmm(matrix, scene.context, factor.T, alpha=-1, out=out.view(rows, columns))
        return True

    def tells_finite(self, message: Tensor, scene: Scene) -> bool | None:
        """Columns of length one make no number larger than all of a factor's row together."""
        largest = magnitude(message) * self.rank
        return largest < math.inf if largest < NEAR_OVERFLOW or largest == math.inf else None

    def observe(self, mean: Tensor, scene: Scene) -> None:
        scene.state["steps"] += 1
        if scene.stash is not None:
            factor = scene.stash["factor"]
            key, (columns, rank) = scene.shared_key(), factor.shape
            scene.state["q"] = unit_columns(factor, lambda: random_matrix(key, columns, rank, factor.device))


def random_matrix(key: int, rows: int, columns: int, device: torch.device) -> Tensor:
    """Entries uniform in [-1/2, 1/2), equal on every rank and device."""
    return uniform24(hash32(key, 0, rows * columns, device)).view(rows, columns) - 0.5


def unit_columns(matrix: Tensor, instead: Callable[[], Tensor] | None = None) -> Tensor:
    """Columns of norm 1; negligible ones are replaced by those of `instead`."""
    norms: Tensor = torch.linalg.vector_norm(matrix, dim=0, dtype=torch.float64)
    if instead is not None and bool((weak := norms <= _NEGLIGIBLE * norms.amax()).any()):
        matrix = torch.where(weak, instead(), matrix)
        norms = torch.linalg.vector_norm(matrix, dim=0, dtype=torch.float64)
    return (matrix / norms.clamp_min(1e-300)).float()


def orthonormal(matrix: Tensor) -> Tensor:
    """Orthonormal columns whose span contains the matrix's; NaN throughout if it is not finite.

    Householder reflections give them for dependent and zero columns too. Columns are first brought to a largest
    magnitude of 1, so that neither tiny nor huge gradients leave the range of fp32.
    """
    largest = matrix.abs().amax(0)
    if not bool(torch.isfinite(largest).all()):
        return torch.full_like(matrix, float("nan"))
    scaled = matrix / torch.where(largest > 0, largest, torch.ones_like(largest))
    basis: Tensor = torch.linalg.qr(scaled).Q
    return basis.contiguous()
