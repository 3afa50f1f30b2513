"""Momentum on each rank, before anything is left out: momentum correction."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.core.context import Context, State
from thinwire.core.options import number, switch
from thinwire.core.source import Source
from thinwire.core.spec import Spec
from thinwire.core.stage import DeliveryStage, Encoded, InputStage, Transform
from thinwire.kernels.modes import Mode, put


@dataclass(frozen=True, repr=False)
class Momentum(InputStage, DeliveryStage, Transform):
    """Momentum correction: each rank's velocity u = beta u + g enters the chain in place of its gradient g.

    Whatever the chain holds back is then held back of the velocity, as if every number had arrived late but with its
    momentum; train with an optimiser that has no momentum of its own. Without loss it is dense momentum SGD.
    `masking` (momentum factor masking) sets u to 0 where this rank's contribution arrived, so that stale momentum
    does not follow it; it is meant for sparsifiers, and does nothing in a step in which nothing had to wait.
    `clip` limits the norm of each rank's gradient to clip / sqrt(P) first. Lin et al., ICLR 2018.
    """

    name: ClassVar[str] = "momentum"
    rank_local: ClassVar[tuple[str, ...]] = ("velocity",)
    shown: ClassVar[tuple[str, ...]] = ("beta",)

    beta: float = number(0.9, low=0.0, high=0.9999, help="share of the velocity that is kept from step to step")
    masking: bool = switch(False, help="forget the velocity where this rank's contribution arrived")
    clip: float | None = number(None, low=1e-30, high=3e38, optional=True, help="norm to clip the mean gradient at")

    @property
    def unbiased(self) -> bool:
        return True

    def out(self, spec: Spec) -> Spec:
        return spec

    def rescale(self, state: State, factor: float) -> None:
        rescale_velocity(state, factor)

    def accumulate(self, share: Source, ctx: Context) -> Source:
        velocity = next_velocity(clipped(share.tensor(), self.clip, ctx.ranks), ctx.state, self.beta)
        ctx.stash = {"velocity": velocity}
        return Source(velocity.clone())

    def encode(self, x: Tensor, ctx: Context) -> Encoded:
        if ctx.stash is not None:
            ctx.stash["given"] = x
        return Encoded(x)

    def decode(self, encoded: Encoded, ctx: Context, out: Tensor, mode: Mode = "write") -> None:
        put(encoded.values, out, mode)

    def delivered(self, sent: Tensor, ctx: Context) -> None:
        ctx.stash["sent"] = sent

    def observe(self, mean: Tensor, ctx: Context) -> None:
        """Keep the velocity, but not where this rank's contribution is in the result."""
        velocity = ctx.stash["velocity"]
        if self.masking and "given" in ctx.stash:  # before its delay is over, a chain sends everything
            # the owner of a shard books as its own what a second encoding drops: that did not arrive
            arrived = (ctx.stash["sent"] != 0) & (mean != 0)
            waiting = (ctx.stash["given"] != 0) & ~arrived
            if bool(waiting.any()):
                velocity = velocity.masked_fill(arrived, 0.0)
        ctx.state["velocity"] = velocity


def clipped(share: Tensor, limit: float | None, ranks: int) -> Tensor:
    """This rank's share g / P of the mean with |g| limited to limit / sqrt(P).

    The mean of P independent gradients is sqrt(P) times shorter than one of them, so that this clips each of them
    where clipping their mean would (Lin et al. 2018).
    """
    if limit is None:
        return share
    norm: Tensor = torch.linalg.vector_norm(share, dtype=torch.float64) * ranks
    return share * (limit / math.sqrt(ranks) / norm.clamp_min(1e-300)).clamp(max=1.0).float()


def next_velocity(share: Tensor, state: State, beta: float) -> Tensor:
    """u = beta u + g, in memory of its own; the state keeps the old one until the result is known to be finite."""
    velocity = state.get("velocity")
    return share.clone() if velocity is None else torch.add(share, velocity, alpha=beta)


def rescale_velocity(state: State, factor: float) -> None:
    if "velocity" in state:
        state["velocity"] = state["velocity"] * factor
