"""Compressed averaging for simulated training: what a DDP run with this plan would give, without processes."""

import zlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from thinwire import Codec, Plan, Slot, StepInfo
from thinwire.core.average import average
from thinwire.core.coalesced import coalesced
from thinwire.core.ops import Rounds
from thinwire.core.plan import PlanLike
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
        codecs = {n: self.plan.decide(n, tuple(w.shape), w.dtype).codec for n, w in weights.items()}
        # tensors with a codec share rounds, as in DDP: a short one then takes the reduction of all of them together
        coded = [name for name in weights if codecs[name].stages]
        bundle = sum(weights[name].numel() for name in coded)
        plain = [name for name in weights if not codecs[name].stages]  # sent as they are: in one piece, which is faster
        pieces = [_joined(rank, plain) for rank in gradients]
        rounds = [
            [self._rounds(rank, name, codecs[name], bundle, gradients[rank][name], weights[name]) for name in coded]
            + [self._rounds(rank, plain[0], Codec(), bundle, pieces[rank], None) for _ in plain[:1]]
            for rank in range(self.ranks)
        ]
        means, sent = run([coalesced(segments) for segments in rounds])
        self.step += 1
        self.sent += sent[0]
        found = dict(zip(coded, means[0], strict=False))
        parts = torch.split(means[0][-1], [weights[name].numel() for name in plain]) if plain else ()
        found.update({name: part.view_as(weights[name]) for name, part in zip(plain, parts, strict=True)})
        return {name: found[name] for name in weights}

    def _rounds(
        self,
        rank: int,
        name: str,
        codec: Codec,
        bundle: int,
        gradient: Tensor,
        weight: Tensor | None,
    ) -> Rounds[Tensor]:
        slot = self.slots[rank].setdefault(name, Slot())
        seed = self.seed * 2**32 + zlib.crc32(name.encode())
        info = StepInfo(rank, self.ranks, seed, self.step, bundle_numel=bundle)
        return average(codec, gradient, slot, info, weight)

    def wire_ratio(self, weights: Mapping[str, Tensor]) -> float:
        """How many times fewer bytes than an fp32 all-reduce, over all steps so far."""
        numel = sum(w.numel() for w in weights.values())
        plain = 8 * (self.ranks - 1) * -(-numel // self.ranks) * self.step
        return plain / self.sent if self.sent else 1.0


def _joined(gradients: Gradients, names: Sequence[str]) -> Tensor:
    return torch.cat([gradients[name].reshape(-1) for name in names]) if names else torch.empty(0)
