"""Compressed averaging for simulated training: what a DDP run with this plan would give, without processes."""

import zlib
from collections.abc import Mapping, Sequence

from torch import Tensor

from thinwire import Plan, Slot, StepInfo
from thinwire.core.average import average
from thinwire.core.coalesced import coalesced
from thinwire.core.ops import Rounds
from thinwire.ddp.hook import PlanLike
from thinwire.worlds.simulated import run
from thinwire_lab.recipes.simulated import Gradients


class CompressedAverage:
    """Averages the gradients of all ranks as a plan says, and counts the bytes that rank 0 sends."""

    def __init__(self, plan: PlanLike, ranks: int, seed: int = 0) -> None:
        self.plan = Plan.parse(plan)
        self.ranks = ranks
        self.seed = seed
        self.step = 0
        self.sent = 0
        self.slots: list[dict[str, Slot]] = [{} for _ in range(ranks)]

    def __call__(self, gradients: Sequence[Gradients], weights: Mapping[str, Tensor]) -> Gradients:
        names = list(weights)
        rounds = [[self._rounds(rank, name, gradients, weights) for name in names] for rank in range(self.ranks)]
        means, sent = run([coalesced(segments) for segments in rounds])
        self.step += 1
        self.sent += sent[0]
        return dict(zip(names, means[0], strict=True))

    def _rounds(
        self, rank: int, name: str, gradients: Sequence[Gradients], weights: Mapping[str, Tensor]
    ) -> Rounds[Tensor]:
        gradient = gradients[rank][name]
        codec = self.plan.decide(name, tuple(gradient.shape), gradient.dtype).codec
        slot = self.slots[rank].setdefault(name, Slot())
        seed = self.seed * 2**32 + zlib.crc32(name.encode())
        return average(codec, gradient, slot, StepInfo(rank, self.ranks, seed, self.step), weights[name])

    def wire_ratio(self, weights: Mapping[str, Tensor]) -> float:
        """How many times fewer bytes than an fp32 all-reduce, over all steps so far."""
        numel = sum(w.numel() for w in weights.values())
        plain = 8 * (self.ranks - 1) * -(-numel // self.ranks) * self.step
        return plain / self.sent if self.sent else 1.0
