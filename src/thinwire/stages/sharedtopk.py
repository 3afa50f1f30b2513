"""The largest numbers of a few ranks in turn, sent by all: sparse vectors that an all-reduce can sum."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from thinwire.core.context import Context
from thinwire.core.ops import LENGTH_BYTES, AllGather, Rounds, longest_message, sent_by
from thinwire.core.options import choice, number
from thinwire.core.source import Source
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import Encoded, Transform
from thinwire.errors import WireError
from thinwire.kernels import coders, sparse
from thinwire.kernels.modes import Mode
from thinwire.kernels.reference.hashing import hash32
from thinwire.kernels.reference.indices import expected_indices_size
from thinwire.stages.sparsify import Sparsifier, chosen, magnitudes, put_back


@dataclass(frozen=True, repr=False)
class SharedTopK(Sparsifier, Transform):
    """Where `leaders` ranks have their ceil(density * n) largest numbers, all ranks send theirs.

    The leaders of a step send their positions (Rice-coded), everyone takes the union, and the values there go
    through one dense all-reduce whose size does not grow with the number of ranks. One leader in turn is CLT-k of
    ScaleCom (Chen et al., NeurIPS 2020). Behind `fft` it chooses pairs, so that sparse spectra are all-reduced.
    Biased; error feedback keeps the rest.
    """

    name: ClassVar[str] = "sharedtopk"
    rounds: ClassVar[int] = 1

    leaders: int = number(1, low=1, high=64, whole=True, help="ranks whose largest numbers are sent")
    order: str = choice("turn", "turn", "random", help="who leads: ranks in turn, or drawn equally on all")

    def out(self, spec: Spec) -> Spec:
        groups = spec.numel // spec.group
        union = groups * (1.0 - (1.0 - self.kept(groups) / max(groups, 1)) ** self.leaders)
        exact = not self.varies and (self.leaders == 1 or self.density == 1.0)
        return spec.numbers(round(union) * spec.group, exact=exact, group=spec.group)

    def agreement(self, spec: Spec, ranks: int) -> Size:
        """The mean over the ranks: only leaders send positions."""
        groups = spec.numel // spec.group
        share = min(self.leaders, ranks) / ranks
        packed = expected_indices_size(groups, self.kept(groups))
        return Size((ranks - 1) * (LENGTH_BYTES + share * packed), exact=False)

    def leading(self, ctx: Context) -> list[int]:
        """The ranks whose positions are taken at this step, equal on all ranks."""
        count = min(self.leaders, ctx.ranks)
        if self.order == "turn":
            return sorted((ctx.step * count + j) % ctx.ranks for j in range(count))
        return sorted(hash32(ctx.shared_key(), 0, ctx.ranks).argsort(stable=True)[:count].tolist())

    def agree(self, x: Source, ctx: Context) -> Rounds[Any]:
        """The union of the leaders' positions, ascending."""
        leaders, groups = self.leading(ctx), x.numel // ctx.spec.group
        message = torch.empty(0, dtype=torch.uint8, device=x.values.device)
        if ctx.rank in leaders:
            scores = magnitudes(x.tensor(), ctx.spec.group)
            message = coders.pack_indices(sparse.largest(scores, self.kept_now(groups, ctx)), groups)
        replies = yield AllGather([message], exact=False, longest=longest_message(groups))
        positions = []
        for leader in leaders:
            if replies[leader][0].numel() == 0:
                raise WireError(f"rank {leader} leads {self} at step {ctx.step} and sent no positions.")
            with sent_by(leader):
                positions.append(coders.unpack_indices(replies[leader][0], groups))
        return positions[0] if len(positions) == 1 else torch.unique(torch.cat(positions))

    def encode(self, x: Tensor, ctx: Context) -> Encoded:
        ctx.count("kept", ctx.shared.numel() * ctx.spec.group)
        return Encoded(chosen(x, ctx.shared, ctx.spec.group))

    def decode(self, encoded: Encoded, ctx: Context, out: Tensor, mode: Mode = "write") -> None:
        put_back(encoded.values, ctx.shared, ctx.spec.group, out, mode)
