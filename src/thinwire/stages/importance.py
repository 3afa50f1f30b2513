"""Importance-weighted pruning: a few ranks choose which numbers travel, and all ranks sum just those."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from thinwire.core.context import Context, State
from thinwire.core.fast import PartCoder, Parts
from thinwire.core.ops import LENGTH_BYTES, AllGather, Rounds, longest_message, sent_by
from thinwire.core.options import number, switch
from thinwire.core.source import Source
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import Encoded, InputStage, Transform
from thinwire.errors import CodecError
from thinwire.kernels import coders, sparse
from thinwire.kernels.importance import importance, most_important
from thinwire.kernels.modes import Mode, put
from thinwire.kernels.reference.hashing import hash32
from thinwire.kernels.shares import all_finite
from thinwire.stages.momentum import clipped, next_velocity, rescale_velocity

USUAL_DENSITY = 1 / 64
_LONG = 1 << 20  # numbers of a tensor, for which work while sums travel pays
_CERTAIN = 1e30  # as many of these as there can be ranks are finite together
FIRST_DENSITY = 0.25  # where a warm-up begins, as in DGC
FIRST_KAPPA = math.log(1 / FIRST_DENSITY) - 1  # the deviations of that density, in an exponential distribution


@dataclass(frozen=True, repr=False)
class Importance(InputStage, Transform):
    """Only numbers that are large for their weight travel, at positions all ranks share, by a dense all-reduce.

    The importance of a number is I = |v| / (|w| + guard * rms(w)), where v is the rank's own gradient with all it
    still holds, and w the weight; in a layer of zero weights it is |v|. In each step `mask_nodes` ranks, drawn at
    random but equally everywhere, send the positions of their most important numbers: the largest by `density`, those
    above `threshold`, or those above mean(I) + kappa * std(I). All ranks sum their v at the union of these positions;
    so the support does not grow with the number of ranks. What stays behind is held by error feedback.
    A small `guard` (0.01) comes close to the bare ratio; a large one turns importance into magnitude.

    `warmup` lowers the density from 1/4 to `density`, by the same factor at each step. With `kappa` it raises the
    threshold by equal amounts, from ln 4 - 1 deviations to `kappa`: where importances have an exponential distribution,
    the density falls from 1/4 by the same factor at each step too. `momentum` > 0 is momentum correction with factor
    masking, and `clip` the local clipping, both as in the `momentum` stage.
    Cheng & Xu, arXiv 1901.01544; the guard, the exact quantile and the Rice-coded masks are ours.
    """

    name: ClassVar[str] = "importance"
    rounds: ClassVar[int] = 1
    rank_local: ClassVar[tuple[str, ...]] = ("velocity",)
    shown: ClassVar[tuple[str, ...]] = ("density",)

    density: float | None = number(None, low=1e-9, high=1.0, optional=True, help="share of numbers in a mask (1/64)")
    threshold: float | None = number(None, low=0.0, high=3e38, optional=True, help="importance above which they travel")
    kappa: float | None = number(None, low=0.0, high=1e6, optional=True, help="deviations above the mean importance")
    mask_nodes: int = number(2, low=1, high=2**20, whole=True, help="ranks that choose, in each step")
    warmup: int = number(0, low=0, high=2**40, whole=True, help="steps until the density, or kappa, is reached")
    momentum: float = number(0.0, low=0.0, high=0.9999, help="momentum correction; the optimiser then has none")
    masking: bool = switch(True, help="forget the velocity where numbers have travelled")
    clip: float | None = number(None, low=1e-30, high=3e38, optional=True, help="norm to clip the mean gradient at")
    guard: float = number(1.0, low=1e-6, high=1e6, help="what keeps small weights from being all-important, in rms(w)")

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [name for name in ("density", "threshold", "kappa") if getattr(self, name) is not None]
        if len(given) > 1:
            raise CodecError(f"{self}: {' and '.join(given)} both say how many numbers travel; give one of them.")
        if not given:
            object.__setattr__(self, "density", USUAL_DENSITY)
        if self.warmup and self.threshold is not None:
            raise CodecError(
                f"{self}: warmup leads to a density or to kappa step by step; give one of them instead of threshold."
            )

    # Sizes: expectations, unless everything travels.

    @property
    def _share(self) -> float:
        """The share of numbers in one mask: as asked for; an exponential tail for `kappa`; unknown: all."""
        if self.density is not None:
            return self.density
        return 1.0 if self.kappa is None else math.exp(-1 - self.kappa)

    def kept(self, numel: int, density: float) -> int:
        return max(1, min(numel, math.ceil(density * numel)))

    def out(self, spec: Spec) -> Spec:
        """The union of independent masks; those of real ranks overlap more."""
        if self.density == 1.0:
            return spec.numbers(spec.numel)
        union = 1 - (1 - self._share) ** self.mask_nodes
        return spec.numbers(min(spec.numel, max(1, round(union * spec.numel))), exact=False)

    def agreement(self, spec: Spec, ranks: int) -> Size:
        """Masks are sent by mask_nodes of the ranks in turn, lengths by all of them."""
        if self.density == 1.0:
            return Size(0)
        mask = coders.expected_indices_size(spec.numel, self.kept(spec.numel, self._share))
        return Size((ranks - 1) * (LENGTH_BYTES + min(1.0, self.mask_nodes / ranks) * mask), exact=False)

    # State.

    def init(self, spec: Spec) -> State:
        return {"steps": 0} if self.warmup else {}

    def rescale(self, state: State, factor: float) -> None:
        rescale_velocity(state, factor)

    def density_at(self, steps: int) -> float:
        """The density after so many steps: FIRST_DENSITY (density / FIRST_DENSITY)^(steps / warmup), then constant."""
        target = self._share
        if steps >= self.warmup or target >= FIRST_DENSITY:
            return target
        return FIRST_DENSITY * math.pow(target / FIRST_DENSITY, steps / self.warmup)

    def kappa_at(self, steps: int) -> float:
        """The deviations after so many steps: from FIRST_KAPPA to kappa by equal amounts, then constant."""
        target = self.kappa or 0.0
        if steps >= self.warmup or target <= FIRST_KAPPA:
            return target
        return FIRST_KAPPA + (target - FIRST_KAPPA) * steps / self.warmup

    # Work.

    def accumulate(self, share: Source, ctx: Context) -> Source:
        if self.momentum == 0 and self.clip is None:
            return share
        gradient = clipped(share.tensor(), self.clip, ctx.ranks)
        if self.momentum == 0:
            return Source(gradient)
        velocity = ctx.stash = next_velocity(gradient, ctx.state, self.momentum)
        return Source(velocity.clone())

    def agree(self, x: Source, ctx: Context) -> Rounds[Any]:
        """The positions that travel, ascending; None stands for all of them."""
        return (yield from self._agree(x.tensor(), ctx))

    def _agree(self, x: Tensor, ctx: Context) -> Rounds[Any]:
        ctx.count("elements", x.numel())
        kept = self.kept(x.numel(), self.density_at(ctx.state.get("steps", 0)))
        if self.density is not None and kept == x.numel():
            ctx.count("elements_sent", x.numel())
            return None
        nodes = mask_nodes(ctx.shared_key(), self.mask_nodes, ctx.ranks)
        mask = torch.empty(0, dtype=torch.uint8, device=x.device)
        if ctx.rank in nodes:
            mask = coders.pack_indices(self.important(x, kept, ctx), x.numel())
        ctx.count("mask_bytes", mask.numel())
        replies = yield AllGather([mask], exact=False, longest=longest_message(x.numel()))
        indices = _union([_positions_of(node, replies[node][0], x.numel()) for node in nodes])
        ctx.count("elements_sent", indices.numel())
        return indices

    def important(self, x: Tensor, kept: int, ctx: Context) -> Tensor:
        """The positions this rank would choose: at least one."""
        if ctx.weights is None:
            raise CodecError(
                f"{self} compares gradients with weights, and has none;"
                " pass weights=, and let it be the first stage of its chain."
            )
        weights = ctx.weights.detach().reshape(-1).float()
        given = (x, weights, self.guard, ctx.ranks)  # x is 1/P of the rank's own gradient
        if self.density is not None:
            return most_important(*given, kept)
        scores = importance(*given)
        if self.threshold is not None:
            chosen = sparse.above(scores, self.threshold)
        else:
            deviation, mean = torch.std_mean(scores, correction=0)
            chosen = sparse.above(scores, float(mean + self.kappa_at(ctx.state.get("steps", 0)) * deviation))
        return chosen if chosen.numel() else sparse.largest(scores, 1)

    def encode(self, x: Tensor, ctx: Context) -> Encoded:
        return Encoded(x if ctx.shared is None else x.index_select(0, ctx.shared))

    def decode(self, encoded: Encoded, ctx: Context, out: Tensor, mode: Mode = "write") -> None:
        scatter(encoded.values, ctx.shared, out, mode)

    def fast(self, spec: Spec) -> PartCoder:
        return MaskedParts(spec)

    def observe(self, mean: Tensor, ctx: Context) -> None:
        if self.warmup:
            ctx.state["steps"] += 1
        if self.momentum == 0:
            return
        velocity, indices = ctx.stash, ctx.shared
        if self.masking and indices is not None and indices.numel() < velocity.numel():
            velocity = velocity.index_fill(0, indices, 0.0)
        ctx.state["velocity"] = velocity


class MaskedParts(PartCoder):
    """Sums of the elements at the positions of a mask."""

    length = 1
    bounded = True

    def __init__(self, spec: Spec) -> None:
        self.long = spec.numel >= _LONG

    def parts(self, x: Source, ctx: Context) -> Parts | None:
        return None if ctx.shared is None else Masked(x.tensor(), ctx.shared)

    def finite(self, data: Tensor, ctx: Context) -> bool | None:
        return all_finite(data)


class Masked(Parts):
    """The elements at the positions of a mask, each a part; the rest of the result is zero before any of them come."""

    def __init__(self, x: Tensor, positions: Tensor) -> None:
        self.length, self.count = 1, positions.numel()
        self.x, self.positions, self.total = x, positions, torch.empty(0)
        self._finite = True
        self._prepared = False

    def set_output(self, out: Tensor) -> None:
        self.total = out

    def prepare(self) -> None:
        if not self._prepared:
            self.total.zero_()
            self._prepared = True

    def encode(self, low: int, high: int) -> Tensor:
        return self.x.index_select(0, self.positions[low:high])

    def decode(self, values: Tensor, low: int, high: int) -> None:
        self.prepare()
        self._finite = self._finite and all_finite(values)
        sparse.scatter_add(self.total, self.positions[low:high], values)

    def result(self) -> Tensor:
        return self.total

    def finite(self) -> bool:
        return self._finite

    def certain(self, largest: float) -> bool:
        return largest < _CERTAIN


def mask_nodes(key: int, count: int, ranks: int) -> list[int]:
    """`count` different ranks, every set of them equally likely: those that draw the smallest numbers."""
    drawn = hash32(key, 0, ranks).tolist()
    return sorted(sorted(range(ranks), key=lambda rank: drawn[rank])[:count])


def scatter(values: Tensor, indices: Tensor | None, out: Tensor, mode: Mode) -> None:
    """Write values at their positions, with zeros elsewhere, or add or subtract them there; None: at all positions."""
    if indices is None:
        put(values, out, mode)
    elif mode == "write":
        sparse.scatter(None, indices, values, out)
    else:
        sparse.scatter_add(out, indices, values if mode == "add" else values.neg())


def _positions_of(node: int, message: Tensor, numel: int) -> Tensor:
    with sent_by(node):
        return coders.unpack_indices(message, numel)


def _union(masks: list[Tensor]) -> Tensor:
    union = masks[0]
    for mask in masks[1:]:
        union = sparse.union(union, mask)
    return union
