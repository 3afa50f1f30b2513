"""A quantiser whose levels are fitted to the gradients of all ranks: ALQ."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import sqrt
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from thinwire.core.context import Context, State
from thinwire.core.ops import AllReduce, Rounds
from thinwire.core.options import choice, number
from thinwire.core.source import Source
from thinwire.core.spec import Size, Spec
from thinwire.errors import StateError
from thinwire.kernels.quantise import Norm, Scheme
from thinwire.kernels.reference.quantise import bucket_scales, scaled_magnitudes, to_elements
from thinwire.stages.quantise import Bucketed, exponential_levels

_STEPS = 16  # bins in an octave
_OCTAVES = 24  # below 1; smaller magnitudes share one bin
_EDGES = [0.0] + [2.0 ** (o - _OCTAVES) * (1 + s / _STEPS) for o in range(_OCTAVES) for s in range(_STEPS)] + [1.0]
_BINS = len(_EDGES) - 1
_SAMPLE = 1 << 18  # numbers of a rank that enter a histogram
_ENOUGH = 64  # numbers for each level, over all ranks, below which a fit would only follow the noise
_SWEEPS = 30
_LEAST_GAP = 1e-5  # between neighbouring levels, as a share of the upper one: they must stay apart in fp32


@dataclass(frozen=True, repr=False)
class ALQ(Bucketed):
    """Stochastic rounding to levels 0 = l_0 < ... < l_m = 1, m = 2^(bits-1) - 1, that suit the gradients of the run.

    They start as NUQSGD's powers of two. At step `start`, at 10 `start`, and at every multiple of `every`, the ranks
    sum a histogram of |x| / scale, weighted by scale^2, and each minimises on it the squared error to expect,
    Psi = sum_j integral_{l_j}^{l_j+1} (l_j+1 - r)(r - l_j) dF(r), level by level (Faghri et al., NeurIPS 2020). The
    same histogram and plain IEEE arithmetic give the same levels everywhere. Unbiased whatever the levels are.
    """

    name: ClassVar[str] = "alq"
    rounds: ClassVar[int] = 1
    shown: ClassVar[tuple[str, ...]] = ("bits",)

    bits: int = number(4, low=3, high=8, whole=True, help="bits of a number, one of them its sign")
    norm: str = choice("max", "max", "l2", help="what a bucket is scaled by")
    bucket: int = number(512, low=1, high=2**30, whole=True, help="numbers that share a scale")
    start: int = number(10, low=0, high=2**31, whole=True, help="step of the first fit")
    every: int = number(1000, low=1, high=2**31, whole=True, help="steps between later fits")

    @property
    def unbiased(self) -> bool:
        return True

    def scheme(self, spec: Spec, ctx: Context | None = None, device: torch.device | None = None) -> Scheme:
        """With the levels of this step; without a ctx, those of the first."""
        levels: Tensor = exponential_levels(0.5, self.bits)
        if ctx is not None:
            levels = ctx.state["levels"] if ctx.shared is None else ctx.shared
        return Scheme("levels", self.bits, self.bucket, cast(Norm, self.norm), levels.to(device or "cpu"))

    def agreement(self, spec: Spec, ranks: int) -> Size:
        """A histogram now and then; the mean over the steps."""
        return Size(2 * (ranks - 1) * -(-_BINS // ranks) * 4 / self.every, exact=False)

    def init(self, spec: Spec) -> State:
        return {"levels": exponential_levels(0.5, self.bits).clone(), "steps": 0}

    def check_state(self, state: State, spec: Spec) -> None:
        super().check_state(state, spec)
        levels: list[float] = state["levels"].tolist()
        if levels[0] != 0.0 or levels[-1] != 1.0 or any(low >= high for low, high in pairwise(levels)):
            raise StateError(f"the levels of {self} must rise from 0 to 1; got {levels}.")

    def fits_at(self, step: int) -> bool:
        return step in (self.start, 10 * self.start) or (step > self.start and step % self.every == 0)

    def agree(self, x: Source, ctx: Context) -> Rounds[Any]:
        """The levels of this step: fitted anew when it is time."""
        levels: Tensor = ctx.state["levels"]
        enough = ctx.spec.numel * ctx.ranks >= _ENOUGH * levels.numel()
        if self.fits_at(ctx.state["steps"]) and enough:
            (weights,) = yield AllReduce([histogram(x.tensor(), self.bucket, cast(Norm, self.norm))])
            levels = torch.tensor(fitted(weights.tolist(), levels.tolist()), dtype=torch.float32)
        return levels.to(x.values.device)

    def observe(self, mean: Tensor, ctx: Context) -> None:
        if ctx.shared is not None:  # None: a stage before this one was not ready
            ctx.state["steps"] += 1
            ctx.state["levels"] = ctx.shared.cpu()


def histogram(x: Tensor, bucket: int, norm: Norm) -> Tensor:  # [numel] -> [bins]
    """The share of the squared scale in each bin of |x| / scale; exact 0 and 1 are levels already and do not count."""
    width = min(bucket, x.numel())
    if x.numel() > _SAMPLE:  # whole buckets, spread over the tensor
        rows = x[: x.numel() // width * width].view(-1, width)
        x = rows[:: -(-x.numel() // _SAMPLE)].reshape(-1)
    scales = bucket_scales(x, width, norm).nan_to_num(0.0)
    ratio = scaled_magnitudes(x, scales, width, 1.0)
    relative = (scales / scales.max().clamp(min=torch.finfo(torch.float32).tiny)).double().square()
    weights = to_elements(relative, width, x.numel()) * ((ratio > 0) & (ratio < 1))
    lowest = (127 - _OCTAVES) * _STEPS
    bins = ((ratio.view(torch.int32) >> 19) - lowest + 1).clamp_(0, _BINS - 1)
    shares = torch.bincount(bins, weights, minlength=_BINS)
    return (shares / shares.sum().clamp(min=1e-300)).float()


class Distribution:
    """A distribution on [0, 1] that is uniform inside each bin, with the moments up to any point."""

    def __init__(self, weights: Sequence[float]) -> None:
        self.dense = [w / (b - a) for w, a, b in zip(weights, _EDGES[:-1], _EDGES[1:], strict=True)]
        self.moments = [(0.0, 0.0, 0.0)]
        for i in range(_BINS):
            self.moments.append(self._within(i, _EDGES[i + 1]))
        self.masses = [m[0] for m in self.moments]

    def _within(self, i: int, t: float) -> tuple[float, float, float]:
        m0, m1, m2 = self.moments[i]
        a, d = _EDGES[i], self.dense[i]
        return m0 + d * (t - a), m1 + d * (t * t - a * a) / 2, m2 + d * (t**3 - a**3) / 3

    def below(self, t: float) -> tuple[float, float, float]:
        """The integrals of 1, r and r^2 from 0 to t."""
        return self._within(min(bisect_right(_EDGES, t), _BINS) - 1, t)

    def variance(self, levels: Sequence[float]) -> float:
        """Psi: the squared error of stochastic rounding to these levels."""
        total = 0.0
        for low, high in pairwise(levels):
            a, b = self.below(low), self.below(high)
            total += (low + high) * (b[1] - a[1]) - (b[2] - a[2]) - low * high * (b[0] - a[0])
        return total

    def best_between(self, low: float, high: float) -> float:
        """The level that minimises Psi between two neighbours: F(l) = F(low) + E[(high - r) / (high - low)]."""
        a, b = self.below(low), self.below(high)
        mass = a[0] + (high * (b[0] - a[0]) - (b[1] - a[1])) / (high - low)
        i = min(bisect_right(self.masses, mass), _BINS) - 1
        return _EDGES[i] + (mass - self.masses[i]) / self.dense[i] if self.dense[i] > 0 else _EDGES[i]

    def guess(self, top: int) -> list[float]:
        """Levels nearly as dense as many levels would best be, like f^(1/3); by square roots, exact everywhere."""
        parts = [(b - a) * sqrt(sqrt(d)) for d, a, b in zip(self.dense, _EDGES[:-1], _EDGES[1:], strict=True)]
        reached = list(accumulate(parts, initial=0.0))
        levels = [0.0]
        for j in range(1, top):
            share = reached[-1] * j / top
            i = min(bisect_right(reached, share), _BINS) - 1
            levels.append(_EDGES[i] + (_EDGES[i + 1] - _EDGES[i]) * (share - reached[i]) / parts[i])
        return [*levels, 1.0]


def fitted(weights: Sequence[float], levels: Sequence[float]) -> list[float]:
    """Levels of least Psi found by descent from the present ones and from a guess at the best; never worse."""
    data = Distribution(weights)
    if not 0.0 < data.masses[-1] < float("inf"):
        return list(levels)
    found = [descended(data, start) for start in (levels, data.guess(len(levels) - 1))]
    return min([list(levels), *found], key=data.variance)


def descended(data: Distribution, levels: Sequence[float]) -> list[float]:
    """Move one level after the other to its best place between its neighbours, while that lowers Psi."""
    moved = list(levels)
    error = data.variance(moved)
    for _ in range(_SWEEPS):
        for j in range(1, len(moved) - 1):
            low, high = moved[j - 1], moved[j + 1]
            level = data.best_between(low, high)
            if high - level > _LEAST_GAP * high and level - low > _LEAST_GAP * level:
                before = data.variance((low, moved[j], high))
                if data.variance((low, level, high)) < before:
                    moved[j] = level
        last, error = error, data.variance(moved)
        if error > 0.995 * last:
            break
    return moved
