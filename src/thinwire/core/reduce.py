"""How the numbers of the sum space are summed over the ranks.

summed    the backend's own all-reduce; for additive chains
sharded   every rank sends each peer its shard as a message, sums in fp32, encodes the sum once (`core.sharded`)
gathered  every rank sends its whole message to all
ring      the papers' ring: additive chains add what they receive, the others decode, add and encode at every hop

Each returns the sum, and this rank's own contribution as it was delivered, or what is left of y without it: by
linearity the contributions of all ranks add up to the sum, so that a residual `given - own` on each rank holds exactly
what is missing. The owner of a shard books the error of the second encoding as its own.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from thinwire.core.buffers import Buffers
from thinwire.core.cut import Cut, shard_length, size_of
from thinwire.core.given import Flow
from thinwire.core.ops import LENGTH_BYTES, AllGather, AllReduce, Rounds, SendRecv, longest_message, sent_by
from thinwire.core.parts import part_bounds
from thinwire.core.ring import Encodeds, ring
from thinwire.core.sharded import SECOND_ENCODING, Numbers, Want, sharded
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import Stage
from thinwire.core.wire import Link, decode_message, encode_message, encode_message_into, message_size, take_off
from thinwire.errors import CodecError
from thinwire.kernels.shares import share_into

REDUCTIONS = ("summed", "sharded", "gathered", "ring")
ROUND_COST = 16 * 1024  # bytes that a thin link carries in the time of one more round


class Reduced(NamedTuple):
    """The sum, what was wanted of this rank's contribution unless that is dealt with, and whether the sum is finite, if
    that is known."""

    total: Tensor
    own: Tensor | None
    finite: bool | None = None


def choose_reduction(wire: Sequence[Stage], spec: Spec, ranks: int, wish: str | None = None, company: int = 0) -> str:
    """The wished reduction if it is legal; else what a stage prefers, or the cheapest legal one by bytes and rounds.

    `company`: how many numbers travel in the same rounds; what is short goes along with what is long.
    """
    legal = ("sharded", "gathered", "ring") if wire else ("summed", "ring")
    wish = wish or next((stage.prefers for stage in wire if stage.prefers), None)
    if wish is not None:
        if wish not in REDUCTIONS:
            raise CodecError(f"there is no reduction {wish!r}; known are {', '.join(REDUCTIONS)}.")
        if wish not in legal:
            what = f"what {wire[0].name} sends cannot be summed" if wire else "the chain is additive"
            raise CodecError(f"reduction {wish!r} does not fit: {what}; use {' or '.join(legal)}.")
        return wish
    return _cheapest(tuple(wire), spec, max(spec.numel, company), ranks)


@lru_cache(maxsize=4096)
def _cheapest(wire: tuple[Stage, ...], spec: Spec, numel: int, ranks: int) -> str:
    if not wire:
        return "summed"
    spec = replace(spec, numel=numel, shape=spec.shape if numel == spec.numel else ())
    # a ring is never cheaper: the bytes of sharded with 2(P-1) dependent rounds
    costs = {
        kind: reduction_bytes(kind, wire, spec, ranks) + rounds_of(kind, wire, spec) * ROUND_COST
        for kind in ("sharded", "gathered")
    }
    return min(costs, key=lambda kind: costs[kind])


def rounds_of(kind: str, wire: Sequence[Stage], spec: Spec) -> int:
    lengths = 1 if message_size(tuple(wire), spec).exact else 2
    return {"summed": 1, "gathered": lengths, "sharded": 2 * lengths, "ring": 2 * lengths}[kind]


def reduction_bytes(kind: str, wire: Sequence[Stage], spec: Spec, ranks: int, piece: int | None = None) -> Size:
    """Bytes a rank sends; `piece`: the chain is additive and sends parts of so many numbers."""
    if spec.numel == 0:
        return Size(0)
    if not wire:
        grain = piece or 1
        if kind == "ring":
            shards = [-(-(spec.numel // grain) // ranks) * grain]
        else:
            bounds = part_bounds(spec.numel // grain, grain) if piece else [(0, spec.numel)]
            shards = [-(-(high - low) * grain // ranks) for low, high in bounds]
        return Size(2 * (ranks - 1) * sum(shards) * (spec.bits // 8), spec.exact)
    length = spec.numel if kind == "gathered" else shard_length(wire, spec, ranks)
    size = message_size(tuple(wire), replace(spec, numel=length, shape=()))
    framed = size.plus(0 if size.exact else LENGTH_BYTES)
    return framed.times((ranks - 1) * (1 if kind == "gathered" else 2))


def reduce(
    kind: str,
    links: Sequence[Link],
    y: Tensor,
    who: tuple[int, int],
    want: Want,
    buffers: Buffers,
    landing: Tensor | None = None,
    crowd: float = 1.0,
    flow: Flow | None = None,
) -> Rounds[Reduced]:
    """Sum y over the ranks; returns the sum and what is wanted of this rank's contribution to it.

    `who` is this rank, and how many there are; `landing` is memory for the sum, used where that saves a copy; `crowd`
    is how many times as much as y travels in the same rounds; `flow` is asked for the numbers of y before they are
    read, and told of those of the sum, by sharded sums. Unless its own contribution is wanted, y is overwritten.
    """
    if y.numel() == 0:
        return Reduced(y, y)
    if kind == "summed" and want == "nothing":  # a backend sums in place
        (summed,) = yield AllReduce([y])
        return Reduced(summed, y)
    total = buffers.empty(y.numel(), y.dtype, y.device) if landing is None else landing
    if kind == "summed":
        (summed,) = yield AllReduce([total.copy_(y)])
        return Reduced(summed, y.zero_() if want == "left" else y)
    if kind == "ring":
        y = _divided(links, y)
        summed, own = yield from (_ring_encoded(links, y, *who) if links else ring(Encodeds(y), *who))
        return Reduced(summed, y.sub_(own) if want == "left" else own)
    own = buffers.empty(y.numel() if want == "own" else 0, y.dtype, y.device)
    numbers = Numbers(links, y, total, own, want, buffers, flow)
    finite = yield from _gathered(numbers) if kind == "gathered" else sharded(numbers, *who, crowd)
    return Reduced(total, own if want == "own" else y, finite)


def _divided(links: Sequence[Link], y: Tensor) -> Tensor:
    """The numbers themselves, if the encoder was to divide them."""
    ranks = links[0].scene.divisor if links else 1
    if ranks == 1:
        return y
    share_into(y, ranks, None, divided := torch.empty_like(y))
    return divided


def _gathered(numbers: Numbers) -> Rounds[bool | None]:
    links, y = numbers.links, numbers.y
    size = size_of(links, y.numel())
    if size.exact:
        message = numbers.buffers.empty(size, torch.uint8, y.device)
        encode_message_into(links, y, message)
    else:
        message = encode_message(links, y)
    replies = yield AllGather([message], size.exact, longest_message(y.numel()))
    for source, (received,) in enumerate(replies):
        with sent_by(source):
            decode_message(links, received, numbers.total, add=source > 0)
    if numbers.want == "own":
        decode_message(links, message, numbers.own)
    elif numbers.want == "left":
        take_off(links, message, y, numbers.buffers.empty(y.numel(), y.dtype, y.device))
    return None


def _ring_encoded(links: Sequence[Link], y: Tensor, rank: int, ranks: int) -> Rounds[tuple[Tensor, Tensor]]:
    """Decode, add and encode at every hop; each rank books the errors of the encodings it made."""
    cut = Cut.of(links, y.numel(), ranks, Buffers(), y.device)
    own, before = y.clone(), (rank - 1) % ranks

    def sealed(j: int, values: Tensor, hop: int) -> Tensor:
        low, high = cut.shards[j]
        message = cut.encoder(values, cut.shards[j][0], hop * SECOND_ENCODING)(j)
        delivered = torch.empty_like(values)
        with sent_by(rank):
            cut.decoder(delivered, cut.shards[j][0])(j, message)
        own[low:high] -= values - delivered
        return message

    def passed_on(message: Tensor) -> Rounds[Tensor]:
        sizes = [message.numel()] if cut.exact else None
        longest = longest_message(cut.shards[0][1])
        received, _ = yield SendRecv([message], (rank + 1) % ranks, before, sizes, longest=longest)
        arrived: Tensor = received[0]
        return arrived

    low, high = cut.shards[rank]
    message = sealed(rank, y[low:high], 0)
    for hop in range(1, ranks):
        received = yield from passed_on(message)
        j = (rank - hop) % ranks
        low, high = cut.shards[j]
        values = y[low:high].clone()
        with sent_by(before):
            cut.decoder(values, low, add=True)(j, received)
        message = sealed(j, values, hop)
    total = torch.empty_like(y)
    for hop in range(ranks):
        j = (rank + 1 - hop) % ranks
        low, high = cut.shards[j]
        with sent_by(before if hop else rank):
            cut.decoder(total[low:high], low)(j, message)
        if hop < ranks - 1:
            message = yield from passed_on(message)
    return total, own
