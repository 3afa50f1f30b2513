"""Only the largest numbers travel, with their positions."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.core.context import Context
from thinwire.core.options import number, switch
from thinwire.core.schedule import density_at
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import Encoded, ScheduledStage, Stage, WireCoder
from thinwire.errors import WireError
from thinwire.kernels import coders, sparse
from thinwire.kernels.modes import Mode

_COUNT_BYTES = 4
_SMALL = 2.0**-90  # the largest square must leave room for smaller ones


@dataclass(frozen=True, repr=False)
class Sparsifier(ScheduledStage, Stage):
    """A stage that keeps a share of its numbers, or of its groups of numbers, which may change from step to step.

    `density` is where a run settles; `core.schedule` says what warm-up, decay and dial make of it.
    """

    shown: ClassVar[tuple[str, ...]] = ("density",)

    density: float = number(low=1e-9, high=1.0, help="share of the numbers that travel")
    warmup: int = number(0, low=0, high=2**31, whole=True, help="steps in which the density falls from 1 to that")
    decay: int | None = number(
        None, low=1, high=2**31, whole=True, optional=True, help="the dropped share is divided by sqrt(1 + step/decay)"
    )
    dial: bool = switch(False, help="obey the slot's dial")

    @property
    def varies(self) -> bool:
        """The count may change from step to step."""
        return self.warmup > 0 or self.decay is not None or self.dial

    def kept(self, numel: int) -> int:
        """How many of `numel` numbers (or groups) travel once the warm-up is over."""
        return self.count(numel, self.density)

    def kept_now(self, numel: int, ctx: Context) -> int:
        return self.count(numel, self.density_now(ctx))

    def density_now(self, ctx: Context) -> float:
        if not self.varies or "steady" in ctx.state:
            return self.density
        dial = ctx.dial if self.dial else 1.0
        return density_at(self.density, ctx.step, self.warmup, self.decay, dial)

    def count(self, numel: int, density: float) -> int:
        """How many of `numel` numbers travel at this density."""
        return min(numel, math.ceil(density * numel))

    def out(self, spec: Spec) -> Spec:
        kept = self.kept(spec.numel // spec.group) * spec.group
        return spec.numbers(kept, exact=not self.varies, group=spec.group)

    def out_now(self, ctx: Context) -> Spec:
        spec = ctx.spec
        return spec.numbers(self.kept_now(spec.numel // spec.group, ctx) * spec.group, group=spec.group)


@dataclass(frozen=True, repr=False)
class TopK(Sparsifier, WireCoder):
    """The ceil(density * n) numbers of largest magnitude; ties go to the lower position.

    Behind `fft` the pairs of largest magnitude. Positions travel as a bitmap, as raw indices or as Rice-coded gaps,
    whichever is smallest for the message; a count that changes from step to step (`warmup`, `decay`, `dial`) goes
    before them. Biased, |x - Q(x)|^2 <= (1 - density) |x|^2; error feedback keeps the rest. With `chunk`, the
    ceil(density * chunk) largest of every chunk of consecutive numbers (pairs behind `fft`), so that each part of a
    tensor has its share; of a shorter last chunk as many by the same rule.
    """

    name: ClassVar[str] = "topk"

    chunk: int | None = number(
        None, low=2, high=2**30, whole=True, optional=True, help="choose in every chunk of so many; none: in all"
    )

    def count(self, numel: int, density: float) -> int:
        whole, each, rest = self.counts(numel, density)
        return whole * each + rest

    def counts(self, numel: int, density: float) -> tuple[int, int, int]:
        """Whole chunks, how many of each are chosen, and how many of what is left behind them."""
        if self.chunk is None:
            return 0, 0, super().count(numel, density)
        return numel // self.chunk, super().count(self.chunk, density), super().count(numel % self.chunk, density)

    def side(self, spec: Spec) -> Size:
        return Size(0, exact=False)

    def shard_multiple(self, spec: Spec) -> int:
        return spec.group * (self.chunk or 1)

    def received(self, side: Tensor | None, spec: Spec) -> Spec:
        if not self.varies:
            return self.out(spec)
        count = read_count(self, side, spec.numel // spec.group)
        return spec.numbers(count * spec.group, group=spec.group)

    def encode(self, x: Tensor, ctx: Context) -> Encoded:
        scores = rankings(x, ctx)
        indices = self.choose(scores, self.density_now(ctx))
        packed = coders.pack_indices(indices, scores.numel())
        values = ctx.empty(indices.numel() * ctx.spec.group, x)
        sparse.gather(x, indices, values, ctx.spec.group)
        return Encoded(values, with_count(indices, packed) if self.varies else packed)

    def decode(self, encoded: Encoded, ctx: Context, out: Tensor, mode: Mode = "write") -> None:
        assert encoded.side is not None
        groups, packed = out.numel() // ctx.spec.group, encoded.side
        count = self.kept(groups)
        if self.varies:
            count, packed = read_count(self, packed, groups), packed[_COUNT_BYTES:]
        indices = coders.unpack_indices(packed, groups, count)
        self.check_chunks(indices, groups)
        put_back(encoded.values, indices, ctx.spec.group, out, mode)

    def choose(self, scores: Tensor, density: float) -> Tensor:
        """Ascending positions of the largest, in all or in every chunk."""
        whole, each, rest = self.counts(scores.numel(), density)
        if whole == 0 or self.chunk is None:
            return sparse.largest(scores, rest)
        return sparse.largest_in_chunks(scores, self.chunk, each, rest)

    def check_chunks(self, indices: Tensor, numel: int) -> None:
        """Refuse positions of which a chunk has more or fewer than it must; a count that varies says nothing."""
        whole, each, _ = self.counts(numel, self.density)
        if self.varies or self.chunk is None or whole == 0:
            return
        starts = torch.arange(whole, device=indices.device) * self.chunk
        rows = indices[: whole * each].view(whole, each)
        last_starts = indices[whole * each :][:1]
        inside = (rows[:, 0] >= starts) & (rows[:, -1] < starts + self.chunk)
        if not bool(inside.all() & (last_starts >= whole * self.chunk).all()):  # one wait on a device
            raise WireError(f"a {self} message does not have {each} positions in every chunk; resend it.")


@dataclass(frozen=True, repr=False)
class Threshold(WireCoder):
    """The numbers of magnitude above `value`: as many as there are.

    In an average, numbers are compared as they enter the chain: this rank's share of the mean (gradient / ranks)
    plus what is held from earlier steps. Behind `fft` the pairs of magnitude above `value`.
    """

    name: ClassVar[str] = "threshold"
    shown: ClassVar[tuple[str, ...]] = ("value",)

    value: float = number(low=0.0, high=3e38, help="magnitude above which numbers travel")

    def out(self, spec: Spec) -> Spec:
        return spec.numbers(spec.numel, exact=False, group=spec.group)

    def side(self, spec: Spec) -> Size:
        return Size(0, exact=False)

    def shard_multiple(self, spec: Spec) -> int:
        return spec.group

    def received(self, side: Tensor | None, spec: Spec) -> Spec:
        return spec.numbers(read_count(self, side, spec.numel // spec.group) * spec.group, group=spec.group)

    def encode(self, x: Tensor, ctx: Context) -> Encoded:
        scores = magnitudes(x, ctx.spec.group)
        indices = sparse.above(scores, self.value)
        packed = coders.pack_indices(indices, scores.numel())
        return Encoded(chosen(x, indices, ctx.spec.group), with_count(indices, packed))

    def decode(self, encoded: Encoded, ctx: Context, out: Tensor, mode: Mode = "write") -> None:
        assert encoded.side is not None
        groups = out.numel() // ctx.spec.group
        count = read_count(self, encoded.side, groups)
        indices = coders.unpack_indices(encoded.side[_COUNT_BYTES:], groups, count)
        put_back(encoded.values, indices, ctx.spec.group, out, mode)


# Groups: single numbers, or the pairs of a spectrum, which are chosen together.


def rankings(x: Tensor, ctx: Context) -> Tensor:  # [numel] -> [numel / group]
    """What orders numbers as their magnitudes do: themselves, or the squared length of each pair."""
    if ctx.spec.group == 1:
        return x
    squares = ctx.empty(x.numel() // 2, x)
    return squares if sparse.squared_lengths(x, squares) else torch.hypot(x[0::2], x[1::2])


def magnitudes(x: Tensor, group: int) -> Tensor:  # [numel] -> [numel / group]
    """What numbers are chosen by: themselves, or the length of each pair."""
    if group == 1 or x.numel() == 0:
        return x
    squares = x[0::2] * x[0::2]
    squares.addcmul_(x[1::2], x[1::2])
    if _SMALL < float(squares.max()) < math.inf:
        return squares.sqrt_()
    return torch.hypot(x[0::2], x[1::2])  # slower, but no square leaves the range of fp32


def chosen(x: Tensor, indices: Tensor, group: int) -> Tensor:
    """The numbers of the groups at these positions."""
    return x.view(-1, group).index_select(0, indices).view(-1)


def put_back(values: Tensor, indices: Tensor, group: int, out: Tensor, mode: Mode) -> None:
    """Write groups to their positions, where the rest becomes zero, or add or subtract them there."""
    if mode == "write":
        sparse.scatter(None, indices, values, out, group)
    else:
        sparse.scatter_add(out, indices, values if mode == "add" else values.neg(), group)


def with_count(indices: Tensor, packed: Tensor) -> Tensor:
    count = torch.tensor([indices.numel()], dtype=torch.int32).view(torch.uint8).to(packed.device)
    return torch.cat([count, packed])


def read_count(stage: Stage, side: Tensor | None, most: int) -> int:
    """The number of positions that side bytes begin with."""
    if side is None or side.numel() < _COUNT_BYTES:
        raise WireError(f"a {stage} message does not say how many numbers it has.")
    count = int.from_bytes(bytes(side[:_COUNT_BYTES].tolist()), "little")
    if count > most:
        raise WireError(f"a {stage} message says it has {count} of {most} numbers.")
    return count
