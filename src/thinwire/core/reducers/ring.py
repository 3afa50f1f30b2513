"""Sums round a ring, in the way of the papers.

Segment j starts on rank j. In P - 1 hops every rank passes on a segment and adds its own copy of the next one; then it
holds a finished sum, which goes round in P - 1 further hops. Parts of a transform are encoded and decoded while others
are in flight (Yu et al., GradiVeQ, NeurIPS 2018, algorithm 1); wire coders decode, add and encode at every hop.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from thinwire.core.buffers import Buffers
from thinwire.core.fast import Parts
from thinwire.core.ops import Rounds, SendRecv, longest_message, sent_by
from thinwire.core.reducers import sharded
from thinwire.core.reducers.work import SECOND_ENCODING, Reduced, Work
from thinwire.core.shards import Shards
from thinwire.core.source import Source
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import Stage


def cost(coders: Sequence[Stage], spec: Spec, ranks: int, length: int = 1) -> Size:
    """Bytes a rank sends: 2(P-1) segments, of whole parts of `length` elements, or the messages of shards."""
    if coders:
        return sharded.cost(coders, spec, ranks)
    segment = -(-(spec.numel // length) // ranks) * length
    return Size(2 * (ranks - 1) * segment * (spec.bits // 8), spec.exact)


def ring(work: Work) -> Rounds[Reduced]:
    y = work.source.tensor()
    if work.links:
        total, delivered = yield from _encoded_at_every_hop(work, y)
    else:
        total, delivered = yield from ring_of_parts(_Elements(y), work.rank, work.ranks)
    return Reduced(total, y.sub_(delivered) if work.keep == "remainder" else delivered)


def ring_of_parts(parts: Parts, rank: int, ranks: int) -> Rounds[tuple[Tensor, Tensor]]:
    """The decoded sum over all ranks, and this rank's own contribution as it was encoded."""
    each = -(-parts.count // ranks)
    bounds = [(min(j * each, parts.count), min((j + 1) * each, parts.count)) for j in range(ranks)]
    lengths = [(high - low) * parts.length for low, high in bounds]
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    own: dict[int, Tensor] = {}

    def encoded(j: int) -> Tensor:
        own[j] = parts.encode(*bounds[j])
        return own[j]

    def padded(values: Tensor) -> Tensor:
        """All messages of a ring are equally long."""
        return torch.nn.functional.pad(values, (0, each * parts.length - values.numel()))

    values = encoded(rank)
    for hop in range(1, ranks):
        coming = (rank - hop) % ranks
        work = partial(encoded, coming)
        (received,), mine = yield SendRecv([padded(values)], right, left, [each * parts.length], work)
        values = received[: lengths[coming]] + mine
    for hop in range(ranks - 1):
        finished, coming = (rank + 1 - hop) % ranks, (rank - hop) % ranks
        reading = partial(parts.decode, values, *bounds[finished])
        (received,), _ = yield SendRecv([padded(values)], right, left, [each * parts.length], reading)
        values = received[: lengths[coming]]
    parts.decode(values, *bounds[(rank + 2) % ranks if ranks > 1 else 0])
    return parts.result(), parts.whole([own[j] for j in range(ranks)])


class _Elements(Parts):
    """Elements that are encoded already, each a part: the ring all-reduce itself."""

    def __init__(self, values: Tensor) -> None:
        self.length, self.count = 1, values.numel()
        self.values, self.total = values, torch.empty_like(values)

    def encode(self, low: int, high: int) -> Tensor:
        return self.values[low:high]

    def decode(self, values: Tensor, low: int, high: int) -> None:
        self.total[low:high] = values

    def result(self) -> Tensor:
        return self.total


def _encoded_at_every_hop(work: Work, y: Tensor) -> Rounds[tuple[Tensor, Tensor]]:
    """Each rank subtracts the errors of the encodings it made from its contribution."""
    rank, ranks, before = work.rank, work.ranks, (work.rank - 1) % work.ranks
    shards = Shards.of(work.links, y.numel(), ranks, Buffers(), y.device)
    delivered = y.clone()

    def encoded(j: int, values: Tensor, hop: int) -> Tensor:
        low, high = shards.bounds[j]
        message = shards.encoder(Source(values), low, hop * SECOND_ENCODING)(j)
        with sent_by(rank):
            shards.decoder(decoded := torch.empty_like(values), low)(j, message)
        delivered[low:high] -= values - decoded
        return message

    def passed_on(message: Tensor) -> Rounds[Tensor]:
        sizes = [message.numel()] if shards.exact else None
        longest = longest_message(shards.bounds[0][1])
        received, _ = yield SendRecv([message], (rank + 1) % ranks, before, sizes, longest=longest)
        arrived: Tensor = received[0]
        return arrived

    low, high = shards.bounds[rank]
    message = encoded(rank, y[low:high], 0)
    for hop in range(1, ranks):
        received = yield from passed_on(message)
        j = (rank - hop) % ranks
        low, high = shards.bounds[j]
        with sent_by(before):
            shards.decoder(values := y[low:high].clone(), low, "add")(j, received)
        message = encoded(j, values, hop)
    total = torch.empty_like(y)
    for hop in range(ranks):
        j = (rank + 1 - hop) % ranks
        low, high = shards.bounds[j]
        with sent_by(before if hop else rank):
            shards.decoder(total[low:high], low)(j, message)
        if hop < ranks - 1:
            message = yield from passed_on(message)
    return total, delivered
