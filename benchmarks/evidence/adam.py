"""AdamW with what has been tried to make it bear biased chains: momentum in the chain, frozen or dense variance."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Variant:
    """How a run's Adam differs from AdamW(betas=(0.9, 0.95))."""

    beta1: float = 0.9
    beta2: float = 0.95
    frozen: int = 0  # step from which the variance stays and the momentum is the chain's, as in 1-bit Adam; 0: never
    dense: bool = False  # the variance is that of the uncompressed mean gradient, which no real run has
    lr: float = 1.0  # factor of the learning rate


class AdamVariant(torch.optim.Optimizer):
    """m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2, w -= lr (m' / (sqrt(v') + eps) + decay w).

    m' and v' are the estimates without bias. From step `frozen` on v' stays, and g, a sum of momentum 0.9 made by the
    chain, takes the place of m' after a multiplication by 0.1.
    """

    def __init__(self, parameters: Iterable[Tensor], variant: Variant, *, lr: float, weight_decay: float) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})
        self.variant, self.steps = variant, 0
        self.dense: Sequence[Tensor] | None = None
        self.first = [torch.zeros_like(p) for group in self.param_groups for p in group["params"]]
        self.second = [torch.zeros_like(m) for m in self.first]
        self.scale: list[Tensor] = []

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        given, (group,) = self.variant, self.param_groups
        parameters, lr = group["params"], group["lr"] * given.lr
        gradients = [p.grad for p in parameters]
        self.steps += 1
        if not (given.frozen and self.steps > given.frozen):
            seen = list(self.dense) if given.dense and self.dense is not None else gradients
            torch._foreach_lerp_(self.first, gradients, 1 - given.beta1)
            torch._foreach_mul_(self.second, given.beta2)
            torch._foreach_addcmul_(self.second, seen, seen, 1 - given.beta2)
            roots = torch._foreach_sqrt(torch._foreach_div(self.second, 1 - given.beta2**self.steps))
            self.scale = list(torch._foreach_add(roots, 1e-8))
            moves = torch._foreach_div(self.first, 1 - given.beta1**self.steps)
        else:
            moves = torch._foreach_mul(gradients, 0.1)
        torch._foreach_mul_(parameters, 1 - lr * group["weight_decay"])
        torch._foreach_addcdiv_(parameters, moves, self.scale, -lr)
