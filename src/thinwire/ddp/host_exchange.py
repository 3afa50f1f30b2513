"""Averages of ranks that share hosts: summed inside each host, compressed between hosts.

    gradients of a host's ranks ──sum to the carrier──> carriers ──engine──> carriers of the other hosts
                                <──result to all──────           <────────

Each local rank carries its own parameters, so that all of them work, and a host's link carries every number once.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from thinwire.core.ops import AllGather, AllToAll, Rounds
from thinwire.ddp.engine import Engine, NamedGradient
from thinwire.kernels.shares import all_finite
from thinwire.worlds.distributed import Distributed


class HostExchange:
    """Averages gradients in two worlds: `inside` has the ranks of this host, `between` this local rank of each host."""

    def __init__(self, inside: Distributed, between: Distributed, carried: Mapping[str, int]) -> None:
        """`carried`: the local rank that carries each parameter."""
        self._inside, self._between, self._carried = inside, between, carried

    def average(self, engine: Engine, pieces: Sequence[NamedGradient]) -> None:
        """Replace every piece's gradient by its mean over all ranks of all hosts."""
        before = self._inside.sent
        groups = [self._by_carrier(group) for group in _alike(pieces)]
        for group in groups:
            self._inside.drive(self._sum(group))
        mine = [piece for group in groups for piece in group[self._inside.rank]]
        if mine:
            engine.average(mine, self._between)
        for group in groups:
            self._inside.drive(self._spread(group))
        if engine.skips and not all(all_finite(piece.gradient) for piece in pieces):
            engine.overflow = True  # of what others carried, too
        engine.meter.add_inside(self._inside.sent - before)

    def _by_carrier(self, pieces: Sequence[NamedGradient]) -> list[list[NamedGradient]]:
        by_rank: list[list[NamedGradient]] = [[] for _ in range(self._inside.ranks)]
        for piece in pieces:
            by_rank[self._carried[piece.name]].append(piece)
        return by_rank

    def _sum(self, group: Sequence[Sequence[NamedGradient]]) -> Rounds[None]:
        """Send each carrier its parameters; what this rank carries becomes the mean over the host."""
        like = next(piece.gradient for pieces in group for piece in pieces)
        parts = [_joined(pieces, like).div_(self._inside.ranks) for pieces in group]
        received = yield AllToAll([[part] for part in parts], exact=False)
        total = received[0][0]
        for (other,) in received[1:]:  # in the order of ranks, so that a run can be repeated
            total = total + other
        _copy(total, group[self._inside.rank])

    def _spread(self, group: Sequence[Sequence[NamedGradient]]) -> Rounds[None]:
        """Give all ranks of the host what this one carried."""
        like = next(piece.gradient for pieces in group for piece in pieces)
        received = yield AllGather([_joined(group[self._inside.rank], like)], exact=False)
        for rank, ((result,), pieces) in enumerate(zip(received, group, strict=True)):
            if rank != self._inside.rank:
                _copy(result, pieces)


def _alike(pieces: Sequence[NamedGradient]) -> list[list[NamedGradient]]:
    """Pieces that can share an operation."""
    groups: dict[tuple[torch.dtype, torch.device], list[NamedGradient]] = {}
    for piece in pieces:
        groups.setdefault((piece.gradient.dtype, piece.gradient.device), []).append(piece)
    return list(groups.values())


def _joined(pieces: Sequence[NamedGradient], like: Tensor) -> Tensor:
    """A new flat tensor of their gradients, empty if there are none."""
    flat = [piece.gradient.reshape(-1) for piece in pieces]
    return torch.cat(flat) if flat else like.new_empty(0)


def _copy(flat: Tensor, pieces: Sequence[NamedGradient]) -> None:
    parts = torch.split(flat, [piece.gradient.numel() for piece in pieces]) if pieces else ()
    for part, piece in zip(parts, pieces, strict=True):
        piece.gradient.copy_(part.view_as(piece.gradient))
