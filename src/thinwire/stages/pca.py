"""GradiVeQ: gradients as coefficients in a basis learnt from earlier gradients."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from thinwire.core.checks import expect_count, expect_keys
from thinwire.core.context import EVERYONE, Context, State
from thinwire.core.fast import FastPath
from thinwire.core.ops import AllReduce, Broadcast, Rounds
from thinwire.core.options import choice, number, switch, words
from thinwire.core.source import Source
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import DecidingStage, Encoded, InputStage, Stage, Transform
from thinwire.core.text import parse_parts
from thinwire.errors import CodecError
from thinwire.kernels.modes import Mode, put
from thinwire.kernels.reference.hashing import make_key
from thinwire.kernels.shares import divided, magnitude
from thinwire.stages.pca_basis import (
    Basis,
    Layout,
    SliceParts,
    basis_of,
    coefficients,
    decode_slices,
    layouts,
    lost_share,
)
from thinwire.stages.pca_checks import check_basis, check_received, check_samples
from thinwire.stages.pca_samples import Learnt, in_layout, learn, start_sampling, take_sample
from thinwire.stages.phases import Looks, Observe, Phases

_PLAIN, _DRAIN, _SAMPLE, _COMPRESS = range(4)
_USUAL_RATIO = 8
_VOTE_EVERY = 8  # compressed steps between two votes on a refresh
_WORSE = 2  # a basis that loses as much as when it was new is not to blame
_MOST_STAGGER = 15


@dataclass
class _Step:
    """What happens in one step, from the gradient's entry until the state may change."""

    lost: float = 0.0
    refresh: bool = False


@dataclass(frozen=True, repr=False)
class PCA(InputStage, DecidingStage, Transform):
    """Principal components of a layer's slices: q = U^T (x - mu/P) is summed over P ranks, U q + mu decoded once.

    Life of a layer: `warmup` steps as they are; `sample` steps, also as they are, from whose averages one rank
    learns the basis U (length x d) and sends it to all; `reuse` compressed steps; then sampling again. Projections
    are linear, so sum Q(g_i) = Q(sum g_i), and the backend's all-reduce sums coefficients. The loss is what lies
    outside the basis. Yu et al., GradiVeQ, NeurIPS 2018; docs/systems/gradiveq.md says how to choose options.
    """

    name: ClassVar[str] = "pca"
    rounds: ClassVar[int] = 1
    portable: ClassVar[bool] = False  # torch's matrix products

    ratio: float | None = number(None, low=2, high=65536, optional=True, help="numbers of a slice for each coefficient")
    energy: float | None = number(None, low=0, high=1, optional=True, help="share that unseen steps may lose")
    warmup: int = number(40, low=0, high=10**9, whole=True, help="steps before the first sampling")
    sample: int = number(20, low=2, high=10**6, whole=True, help="sampled steps for a basis (L_t)")
    reuse: int = number(400, low=1, high=10**9, whole=True, help="compressed steps for a basis (L_c)")
    slice: int | None = number(None, low=2, high=2**24, whole=True, optional=True, help="numbers in a slice (K)")
    order: str = choice("rows", "rows", "filters", "auto", help="filters: as in the paper; auto: as the samples say")
    pool: bool = switch(True, help="all slices are samples; false: only the first, as in the paper")
    centre: bool = switch(True, help="remove the mean of the sampled steps")
    travel: str | None = words(None, help="the chain of steps that are not compressed")
    limit: float | None = number(None, low=0, high=1, optional=True, help="loss at which a rank votes for a new basis")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ratio is not None and self.energy is not None:
            raise CodecError(f"{self}: ratio and energy both fix the number of coefficients; give one of them.")
        if self.ratio is None and self.energy is None:
            object.__setattr__(self, "ratio", _USUAL_RATIO)
        if self.travel is not None and any(isinstance(stage, Transform) for stage in self._detour[:1]):
            raise CodecError(
                f"{self}: travel takes wire coders such as qsgd(bits=8); {self.travel} can be summed as it is."
            )

    # Sizes.

    @lru_cache(maxsize=4096)  # noqa: B019 (stages are small, and every step asks several times)
    def layouts(self, spec: Spec) -> tuple[Layout, ...]:
        """The slices that a layer may have; none: it always travels as it is."""
        found = layouts(spec.shape, self.order, self.slice, self.sample, self.pool)
        return tuple(layout for layout in found if self.kept(layout))

    def layout(self, spec: Spec) -> Layout | None:
        """The slices that are expected, and in which the sums of samples are kept."""
        possible = self.layouts(spec)
        return possible[0] if possible else None

    @property
    def tries(self) -> bool:
        """Whether the second half of the samples says what is best; the first slice alone is the paper's form."""
        return self.order == "auto" or (self.energy is not None and self.pool)

    def declines(self, spec: Spec) -> str | None:
        if len(spec.shape) < 2:
            return "it is no matrix"
        return None if self.layout(spec) is not None else f"too small for ratio {self.ratio or _USUAL_RATIO:g}"

    def kept(self, layout: Layout) -> int:
        """Coefficients of a slice; with an energy target, only a guess. 0: there would be none."""
        samples = self.sample * (layout.count if self.pool else 1)
        return min(int(layout.length / (self.ratio or _USUAL_RATIO)), samples - 1)

    def out(self, spec: Spec) -> Spec:
        layout = self.layout(spec)
        if layout is None:
            return spec.numbers(spec.numel)
        exact = self.ratio is not None and self.order != "auto"
        return spec.numbers(layout.count * self.kept(layout), exact=exact)

    def agreement(self, spec: Spec, ranks: int) -> Size:
        """Of an ordinary compressed step; with the first of a period, one rank sends 4 K d bytes to each other."""
        return Size(0) if self.limit is None else Size(2 * (ranks - 1) * 4 / _VOTE_EVERY, exact=False)

    # Phases.

    def init(self, spec: Spec) -> State:
        return {"phase": _PLAIN, "left": self.warmup, "begun": 0}

    def check_state(self, state: State, spec: Spec) -> None:
        phase = expect_count(f"'phase' of {self}", state.get("phase"), 0, _COMPRESS)
        begun = expect_count(f"'begun' of {self}", state.get("begun"), int(phase != _PLAIN), 1)
        most = {_PLAIN: max(self.warmup + _MOST_STAGGER, self.reuse), _DRAIN: self._drain(), _SAMPLE: self.sample}
        waits = phase == _PLAIN and not begun
        left = expect_count(f"'left' of {self}", state.get("left"), 0 if waits else 1, most.get(phase, self.reuse))
        possible = self.layouts(spec)
        rest = {key: value for key, value in state.items() if key not in ("phase", "left", "begun")}
        if not possible or waits:
            expect_keys(f"the state of {self} before its first sample", rest, ())
        elif phase == _COMPRESS and left < self.reuse:
            allowed = [layout.length // 2 if self.ratio is None else self.kept(layout) for layout in possible]
            check_basis(f"the state of {self}", rest, possible, allowed, self.centre)
        elif phase == _PLAIN and not rest:
            return  # the first phase, which nothing was sampled before
        else:
            taken = {_SAMPLE: self.sample - left, _COMPRESS: self.sample}.get(phase, 0)
            halved = self.tries and taken >= self.sample // 2
            check_samples(f"the state of {self}", rest, possible, taken, self.pool, self.centre, halved)

    def decided(self, state: State, spec: Spec) -> str | None:
        if "basis" in state:
            layout, columns = self.layouts(spec)[state.get("layout", 0)], state["basis"].shape[1]
            return f"{columns} coefficients for each {layout.length} elements in the order {layout.order}"
        if state.get("phase") == _PLAIN and "taken" in state:  # in place of a basis
            way = f"through {self.travel}" if self.travel else "uncompressed"
            return f"no basis of half the coefficients is good enough for its last samples, travels {way}"
        return None

    def instead(self, state: State, spec: Spec) -> tuple[Stage, ...] | None:
        ready = self.layout(spec) is not None and (bool(state.get("steady")) or state["phase"] == _COMPRESS)
        return None if ready else self._detour

    @property
    def _detour(self) -> tuple[Stage, ...]:
        parts = () if self.travel is None else parse_parts(self.travel)
        return tuple(part for part in parts if isinstance(part, Stage))

    def rescale(self, state: State, factor: float) -> None:
        for name in ("sum", "early_sum", "mean", "offset", "reach"):
            if name in state:
                state[name] = state[name] * factor
        if "scale" in state:
            state["scale"] /= factor  # by which the samples are multiplied: they stay as they are

    def observe(self, mean: Tensor, ctx: Context) -> None:
        layout, state, step = self.layout(ctx.spec), ctx.state, _step(ctx)
        if layout is None or (state["phase"] == _COMPRESS and ctx.shared is None):
            return  # too small, or ready in a chain whose delay is not over
        if not state["begun"]:
            state["begun"] = 1
            state["left"] += self._turn(ctx) % (1 + min(_MOST_STAGGER, self.warmup // 4))
            if not state["left"]:
                self._enter(state, _SAMPLE, self.sample)
        if state["phase"] == _SAMPLE:
            rows = [each.rows(mean) for each in self.layouts(ctx.spec)]
            keeps = self._owner(ctx) == ctx.rank
            take_sample(state, rows, self.sample, self.pool, self.centre, keeps, self.tries)
        if self._votes(state):
            state.setdefault("fresh", step.lost)
        state["left"] -= 1
        if state["phase"] == _COMPRESS:
            self._age(state, ctx, step)
        elif not state["left"]:
            after = _COMPRESS if state["phase"] == _SAMPLE else _SAMPLE
            self._enter(state, after, self.reuse if after == _COMPRESS else self.sample)

    def _age(self, state: State, ctx: Context, step: _Step) -> None:
        """Keep a new basis; leave one that is used up, and send what was held before sampling again."""
        basis: Basis = ctx.shared
        if basis.columns is None:
            start_sampling(state)
            self._enter(state, _PLAIN, self.reuse)
        elif not state["left"] or step.refresh:
            if ctx.has_residual:
                self._enter(state, _DRAIN, self._drain())
            else:
                self._enter(state, _SAMPLE, self.sample)
        elif "basis" not in state:
            start_sampling(state)
            names = ("basis", "mean", "offset", "reach", "layout")
            state.update({k: v for k, v in zip(names, basis, strict=True) if v is not None})
            if self.order != "auto":
                del state["layout"]

    def _enter(self, state: State, phase: int, steps: int) -> None:
        state.update(phase=phase, left=steps)
        if phase in (_DRAIN, _SAMPLE):
            start_sampling(state)

    def _drain(self) -> int:
        return max(1, self.sample // 4)

    def _turn(self, ctx: Context) -> int:
        """A number that spreads layers over ranks and steps, equal on all ranks."""
        return make_key(ctx.seed, ctx.spec.numel, EVERYONE, ctx.stream)

    def _owner(self, ctx: Context) -> int:
        """The rank that keeps this layer's statistics and decomposes them."""
        return (self._turn(ctx) >> 32) % ctx.ranks

    # Error feedback and the vote on a refresh.

    def accumulate(self, share: Source, ctx: Context) -> Source:
        """The share as it is; if a vote is due, the part of its energy that the basis loses is measured."""
        if ctx.state["phase"] == _PLAIN and "taken" in ctx.state:
            ctx.count("without_basis", 1)
        if self._votes(ctx.state):
            basis = basis_of(ctx.state)
            rows = self.layouts(ctx.spec)[basis.layout].rows(share.tensor())
            _step(ctx).lost = lost_share(rows, basis, ctx)
            ctx.count("lost", _step(ctx).lost)
        return share

    def residual_steps(self, state: State) -> int:
        """All at once, as a projection loses the part outside the basis again; afterwards over several steps."""
        return int(state["left"]) if state["phase"] == _DRAIN else 1

    def _votes(self, state: State) -> bool:
        return self.limit is not None and "basis" in state and state["left"] % _VOTE_EVERY == 0

    # Work.

    def agree(self, x: Source, ctx: Context) -> Rounds[Any]:
        """The basis: the one in use, or in the first compressed step a new one, from the rank that has it."""
        if "basis" not in ctx.state:
            return (yield from self._share_basis(x, ctx))
        if self.limit is not None and self._votes(ctx.state):
            step = _step(ctx)
            worse = step.lost > max(self.limit, _WORSE * ctx.state.get("fresh", 1.0))
            vote = torch.tensor([float(worse)], device=x.values.device)
            (votes,) = yield AllReduce([vote])
            step.refresh = float(votes) > ctx.ranks / 2
        return basis_of(ctx.state)

    def _share_basis(self, x: Source, ctx: Context) -> Rounds[Basis]:
        state, owner, possible = ctx.state, self._owner(ctx), self.layouts(ctx.spec)
        learnt = self._learn(ctx, possible) if ctx.rank == owner else None
        told = [learnt.columns.shape[1], learnt.layout] if learnt is not None else [0, 0]
        told = told if self.order == "auto" else told[:1]
        (answer,) = yield Broadcast([torch.tensor(told, dtype=torch.int32, device=x.values.device)], owner)
        kept, at = [*answer.tolist(), 0][:2]
        check_received(owner, kept, at, possible)
        if not kept:
            return Basis(None)
        layout = possible[at]
        flat = x.values.new_empty(layout.length * kept) if learnt is None else learnt.columns.view(-1)
        (flat,) = yield Broadcast([flat], owner)
        columns = flat.view(layout.length, kept)
        if not self.centre:
            return Basis(columns, layout=at)
        mean = in_layout(divided(state["sum"], state["taken"]), possible, at)
        return Basis(columns, mean, mean @ columns, magnitude(mean), at)

    def _learn(self, ctx: Context, possible: Sequence[Layout]) -> Learnt | None:
        """The basis of this layer's samples, on the rank that has them."""
        began = time.perf_counter()
        kept = None if self.ratio is None else [self.kept(layout) for layout in possible]
        learnt = learn(ctx.state, possible, self.pool, self.sample if self.tries else 0, kept, self.energy)
        ctx.count("decompose_seconds", time.perf_counter() - began)
        return learnt

    def encode(self, x: Tensor, ctx: Context) -> Encoded:
        basis: Basis = ctx.shared
        if basis.columns is None:
            return Encoded(x.clone())
        rows = self.layouts(ctx.spec)[basis.layout].rows(x)
        return Encoded(coefficients(rows, basis, ctx.ranks).view(-1))

    def decode(self, encoded: Encoded, ctx: Context, out: Tensor, mode: Mode = "write") -> None:
        basis: Basis = ctx.shared
        if basis.columns is None:
            put(encoded.values, out, mode)
            return
        decode_slices(self.layouts(ctx.spec)[basis.layout], encoded.values, basis, ctx, out, mode)

    def fast(self, spec: Spec) -> FastPath:
        possible = self.layouts(spec)
        if not possible:
            return Phases(self.observe, lambda ctx: False)
        return PhasedSlices(self.observe, _samples, possible, self.kept(possible[0]))


class PhasedSlices(Phases, SliceParts):
    """Sums in parts, of a layer that fits."""

    def __init__(self, observe: Observe, looks: Looks, layouts: Sequence[Layout], kept: int) -> None:
        Phases.__init__(self, observe, looks)
        SliceParts.__init__(self, layouts, kept)


def _samples(ctx: Context) -> bool:
    """Whether a step looks at its mean."""
    return not ctx.state["begun"] or ctx.state["phase"] == _SAMPLE


def _step(ctx: Context) -> _Step:
    if ctx.stash is None:
        ctx.stash = _Step()
    step: _Step = ctx.stash
    return step
