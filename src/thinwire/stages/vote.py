"""signSGD with majority vote: one bit up, one bit down."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from thinwire.core.context import Context
from thinwire.core.ops import AllReduce, Rounds
from thinwire.core.source import Source
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import Encoded, Transform, WireCoder
from thinwire.errors import WireError
from thinwire.kernels.modes import Mode, put
from thinwire.kernels.reference.hashing import hash32
from thinwire.kernels.shares import divided

_COUNTED = 0x7FFFF000  # sign and 12 bits of mantissa cleared: up to 4,096 votes of this scale add up without rounding


@dataclass(frozen=True, repr=False)
class Ballot(Transform):
    """Every rank's sign of each number, times one scale that all ranks share: votes of equal weight.

    The scale is the mean over ranks of mean|x|, cut to 12 significant bits so that counting is exact. A number that
    is zero votes at random. Biased: what the sign does not say can be held by error feedback.
    """

    name: ClassVar[str] = "ballot"
    rounds: ClassVar[int] = 1

    def out(self, spec: Spec) -> Spec:
        return spec.numbers(spec.numel)

    def agreement(self, spec: Spec, ranks: int) -> Size:
        return Size(2 * (ranks - 1) * 4)

    def agree(self, x: Source, ctx: Context) -> Rounds[Any]:
        (total,) = yield AllReduce([divided(mean_magnitude(x.tensor()), ctx.ranks).float().view(1)])
        return torch.where(torch.isfinite(total), (total.view(torch.int32) & _COUNTED).view(torch.float32), torch.nan)

    def encode(self, x: Tensor, ctx: Context) -> Encoded:
        return Encoded(torch.where(positive(x, ctx), ctx.shared, -ctx.shared))

    def decode(self, encoded: Encoded, ctx: Context, out: Tensor, mode: Mode = "write") -> None:
        put(encoded.values, out, mode)


@dataclass(frozen=True, repr=False)
class Vote(WireCoder):
    """One bit for each number and mean|x| for each message; a tie (zero) is broken at random.

    Behind `ballot` the way up loses nothing, and encoding the sum for the way down is the majority vote: this happens
    in the `sharded` reduction, which is taken unless another is asked for. With `gathered` every rank receives all
    ballots and the result is their mean; with `ring` each hop votes on the votes so far.
    Bernstein et al., ICML 2018.
    """

    name: ClassVar[str] = "vote"
    preferred_reduction: ClassVar[str | None] = "sharded"

    def side(self, spec: Spec) -> Size:
        return Size(4)

    def out(self, spec: Spec) -> Spec:
        return spec.symbols(1, signed=False)

    def encode(self, x: Tensor, ctx: Context) -> Encoded:
        scale = mean_magnitude(x).float().view(1)
        return Encoded(positive(x, ctx).to(torch.uint8), scale.view(torch.uint8))

    def decode(self, encoded: Encoded, ctx: Context, out: Tensor, mode: Mode = "write") -> None:
        if encoded.side is None or encoded.side.numel() != 4:
            raise WireError(f"a {self} message does not say its scale.")
        scale = encoded.side.clone().view(torch.float32)
        put(torch.where((encoded.values & 1) > 0, scale, -scale), out, mode)


def mean_magnitude(x: Tensor) -> Tensor:
    """mean|x| in double precision: equal magnitudes have exactly themselves as their mean."""
    return divided(x.abs().sum(dtype=torch.float64), max(x.numel(), 1))


def positive(x: Tensor, ctx: Context) -> Tensor:
    """Which numbers count as positive; zeros by a coin of this rank, step and position."""
    above, zero = x > 0, x == 0
    if bool(zero.any()):
        above |= zero & (hash32(ctx.key(), ctx.base, x.numel(), x.device) >= 2**31)
    return above
