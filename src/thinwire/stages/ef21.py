"""Differences to a running estimate, in place of a residual: EF21."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.core.context import Context, State
from thinwire.core.spec import Spec
from thinwire.core.stage import DeliveryStage, Encoded, InputStage, Transform
from thinwire.kernels.modes import Mode, put


@dataclass(frozen=True, repr=False)
class EF21(InputStage, DeliveryStage, Transform):
    """Each rank keeps an estimate h_k of its gradient; the chain behind carries g_k - h_k, and h_k takes what arrived.

    All ranks keep the sum H of the estimates, and the result is H and the sum of what arrived: the new H. As gradients
    settle, so do the differences, and less is lost, whatever the chain drops. There is no residual: nothing that was
    held back comes in a burst later. Richtarik et al., NeurIPS 2021.
    """

    name: ClassVar[str] = "ef21"
    rank_local: ClassVar[tuple[str, ...]] = ("estimate",)
    keeps_losses: ClassVar[bool] = True

    @property
    def unbiased(self) -> bool:
        return True  # it loses nothing by itself

    def out(self, spec: Spec) -> Spec:
        return spec

    def declines(self, spec: Spec) -> str | None:
        """What arrived is told in the tensor's own space, so that differences must be taken there."""
        return None if spec.shape or spec.numel <= 1 else "it compares gradients themselves"

    def init(self, spec: Spec) -> State:
        return {"sum": torch.zeros(spec.numel)}

    def rescale(self, state: State, factor: float) -> None:
        for key in ("sum", *self.rank_local):
            if key in state:
                state[key] = state[key] * factor

    def encode(self, x: Tensor, ctx: Context) -> Encoded:
        estimate = ctx.state.get("estimate")
        return Encoded(x.clone() if estimate is None else torch.sub(x, estimate))

    def decode(self, encoded: Encoded, ctx: Context, out: Tensor, mode: Mode = "write") -> None:
        """Of one contribution this rank's new estimate, of all of them the new sum."""
        before = ctx.state["sum"] if ctx.contributions == ctx.ranks else ctx.state.get("estimate")
        if ctx.contributions == 0 or before is None:
            put(encoded.values, out, mode)
        else:
            put(encoded.values + before.to(encoded.values.device), out, mode)

    def delivered(self, sent: Tensor, ctx: Context) -> None:
        ctx.stash = {"estimate": sent}

    def observe(self, mean: Tensor, ctx: Context) -> None:
        ctx.state["sum"] = mean.detach().to(torch.float32, copy=True).view(-1)
        if ctx.stash is not None:
            ctx.state["estimate"] = ctx.stash["estimate"].clone()
