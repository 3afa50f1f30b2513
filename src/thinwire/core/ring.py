"""Sums of additive chains in the way of the papers, round a ring.

Segment j starts on rank j. In P - 1 hops every rank passes on a segment, encodes its own copy of the next one while the
bytes travel, and adds the two; then it holds a finished sum, which goes round in P - 1 further hops, each rank decoding
one segment while it receives the next (Yu et al., GradiVeQ, NeurIPS 2018, algorithm 1).
"""

from functools import partial

import torch
from torch import Tensor

from thinwire.core.ops import Rounds, SendRecv
from thinwire.core.parts import Parts


def ring(parts: Parts, rank: int, ranks: int) -> Rounds[tuple[Tensor, Tensor]]:
    """The decoded sum over all ranks, and this rank's own contribution as it was encoded."""
    each = -(-parts.count // ranks)
    bounds = [(min(j * each, parts.count), min((j + 1) * each, parts.count)) for j in range(ranks)]
    lengths = [(high - low) * parts.grain for low, high in bounds]
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    own: dict[int, Tensor] = {}

    def encoded(j: int) -> Tensor:
        own[j] = parts.encode(*bounds[j])
        return own[j]

    def passed_on(values: Tensor) -> Tensor:
        """Of full length: all messages of a ring are equally long."""
        return torch.nn.functional.pad(values, (0, each * parts.grain - values.numel()))

    values = encoded(rank)
    for hop in range(1, ranks):
        coming = (rank - hop) % ranks
        work = partial(encoded, coming)
        (received,), mine = yield SendRecv([passed_on(values)], right, left, [each * parts.grain], work)
        values = received[: lengths[coming]] + mine
    for hop in range(ranks - 1):
        finished, coming = (rank + 1 - hop) % ranks, (rank - hop) % ranks
        reading = partial(parts.decode, values, *bounds[finished])
        (received,), _ = yield SendRecv([passed_on(values)], right, left, [each * parts.grain], reading)
        values = received[: lengths[coming]]
    parts.decode(values, *bounds[(rank + 2) % ranks if ranks > 1 else 0])
    return parts.result(), parts.whole([own[j] for j in range(ranks)])


class Encodeds(Parts):
    """Numbers that are encoded already, each a part of its own: the ring all-reduce itself."""

    def __init__(self, values: Tensor) -> None:
        self.grain, self.count = 1, values.numel()
        self.values, self.total = values, torch.empty_like(values)

    def encode(self, low: int, high: int) -> Tensor:
        return self.values[low:high]

    def decode(self, values: Tensor, low: int, high: int) -> None:
        self.total[low:high] = values

    def result(self) -> Tensor:
        return self.total
