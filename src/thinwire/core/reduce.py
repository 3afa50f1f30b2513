"""How the numbers of the sum space are summed over the ranks.

summed    the backend's own all-reduce; for additive chains
sharded   every rank sends each peer its shard as a message, sums in fp32, encodes the sum once, all-gathers
gathered  every rank sends its whole message to all
ring      the papers' ring: additive chains add what they receive, the others decode, add and encode at every hop

Each returns the sum, and this rank's own contribution as it was delivered, or what is left of y without it: by
linearity the contributions of all ranks add up to the sum, so that a residual `given - own` on each rank holds exactly
what is missing. The owner of a shard books the error of the second encoding as its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from thinwire.core.buffers import Buffers
from thinwire.core.ops import LENGTH_BYTES, AllGather, AllReduce, AllToAll, Rounds, SendRecv
from thinwire.core.ring import Encodeds, part_bounds, ring
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import Stage
from thinwire.core.staggered import staggered
from thinwire.core.wire import Link, decode_message, encode_message, encode_message_into, message_size, take_off
from thinwire.errors import CodecError

Want: TypeAlias = Literal["nothing", "own", "left"]

REDUCTIONS = ("summed", "sharded", "gathered", "ring")
ROUND_COST = 16 * 1024  # bytes that a thin link carries in the time of one more round
CHUNK = 1 << 21  # numbers of a long tensor that travel together, at least
SECOND_ENCODING = 64  # added to a stage's stream for each further encoding, so that draws stay independent


def choose_reduction(wire: Sequence[Stage], spec: Spec, ranks: int, wish: str | None) -> str:
    """The wished reduction if it is legal; else what a stage prefers, or the cheapest legal one by bytes and rounds."""
    legal = ("sharded", "gathered", "ring") if wire else ("summed", "ring")
    wish = wish or next((stage.prefers for stage in wire if stage.prefers), None)
    if wish is not None:
        if wish not in REDUCTIONS:
            raise CodecError(f"there is no reduction {wish!r}; known are {', '.join(REDUCTIONS)}.")
        if wish not in legal:
            what = f"what {wire[0].name} sends cannot be summed" if wire else "the chain is additive"
            raise CodecError(f"reduction {wish!r} does not fit: {what}; use {' or '.join(legal)}.")
        return wish
    costs = {
        kind: reduction_bytes(kind, wire, spec, ranks) + rounds_of(kind, wire, spec) * ROUND_COST for kind in legal
    }
    del costs["ring"]  # never cheaper: the bytes of sharded with 2(P-1) dependent rounds
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
    total = Size(0)
    for low, high in chunk_bounds(kind, wire, spec):
        chunk = replace(spec, numel=high - low, shape=())
        length = chunk.numel if kind == "gathered" else shard_length(wire, chunk, ranks)
        size = message_size(tuple(wire), replace(chunk, numel=length))
        framed = size.plus(0 if size.exact else LENGTH_BYTES)
        total = total.plus(framed.times((ranks - 1) * (1 if kind == "gathered" else 2)))
    return total


def chunk_bounds(kind: str, wire: Sequence[Stage], spec: Spec) -> list[tuple[int, int]]:
    """Where long tensors are cut, so that one chunk encodes while another travels and a third decodes."""
    numel, grain = spec.numel, wire[0].grain(spec)
    if kind == "ring" or numel < 2 * CHUNK or not all(stage.splits for stage in wire):
        return [(0, numel)]
    step = -(-numel // (numel // CHUNK * grain)) * grain  # of equal length, but for the last
    return [(low, min(low + step, numel)) for low in range(0, numel, step)]


def reduce(
    kind: str,
    links: Sequence[Link],
    y: Tensor,
    who: tuple[int, int],
    want: Want,
    buffers: Buffers,
    landing: Tensor | None = None,
) -> Rounds[tuple[Tensor, Tensor]]:
    """Sum y over the ranks; returns the sum and what is wanted of this rank's contribution to it.

    `who` is this rank, and how many there are; `landing` is memory for the sum, used where that saves a copy. Unless
    its own contribution is wanted, y is overwritten.
    """
    if y.numel() == 0:
        return y, y
    if kind == "summed" and want == "nothing":  # a backend sums in place
        (summed,) = yield AllReduce([y])
        return summed, y
    total = buffers.empty(y.numel(), y.dtype, y.device) if landing is None else landing
    if kind == "summed":
        (summed,) = yield AllReduce([total.copy_(y)])
        return summed, y.zero_() if want == "left" else y
    if kind == "ring":
        summed, own = yield from (_ring_encoded(links, y, *who) if links else ring(Encodeds(y), *who))
        return summed, y.sub_(own) if want == "left" else own
    bounds = chunk_bounds(kind, [link.stage for link in links], replace(links[0].scene.spec, numel=y.numel()))
    room = {"nothing": 0, "own": y.numel(), "left": max(high - low for low, high in bounds)}[want]
    own = buffers.empty(room, y.dtype, y.device)
    chunks = []
    for low, high in bounds:
        mine = None if want == "nothing" else own[low:high] if want == "own" else own[: high - low]
        chunk = _Chunk(_moved(links, high - low, low, 0), y[low:high], total[low:high], mine, want == "left", buffers)
        chunks.append(_gathered(chunk) if kind == "gathered" else _sharded(chunk, *who))
    yield from staggered(chunks) if len(chunks) > 1 else chunks[0]
    return total, own if want == "own" else y


@dataclass(frozen=True)
class _Chunk:
    """Numbers to be summed, and where the sum and this rank's contribution to it are wanted.

    `left`: the contribution is taken off y at once, so that chunks can share the memory for it.
    """

    links: Sequence[Link]
    y: Tensor
    total: Tensor
    own: Tensor | None
    left: bool
    buffers: Buffers


def _gathered(chunk: _Chunk) -> Rounds[None]:
    links, y = chunk.links, chunk.y
    size = _size(links, y.numel())
    if size.exact:
        message = chunk.buffers.empty(size, torch.uint8, y.device)
        encode_message_into(links, y, message)
    else:
        message = encode_message(links, y)
    replies = yield AllGather([message], exact=size.exact)
    for source, (received,) in enumerate(replies):
        decode_message(links, received, chunk.total, add=source > 0)
    if chunk.own is not None:
        if chunk.left:
            take_off(links, message, y, chunk.own)
        else:
            decode_message(links, message, chunk.own)


def _sharded(chunk: _Chunk, rank: int, ranks: int) -> Rounds[None]:
    y, total, own = chunk.y, chunk.total, chunk.own
    cut = _Cut(chunk.links, y.numel(), ranks, chunk.buffers, y.device)
    others = [j for j in range(ranks) if j != rank]
    messages = cut.messages(len(others))
    for j, message in zip(others, messages, strict=True):
        a, b = cut.shards[j]
        cut.encode(y[a:b], a, message)
    parts = [[] if j == rank else [messages[others.index(j)].bytes] for j in range(ranks)]
    received = yield AllToAll(parts, cut.exact)
    low, high = cut.shards[rank]
    mine = y[low:high]  # this rank's own share needs no encoding: it does not travel
    if own is not None:
        mine = chunk.buffers.empty(high - low, y.dtype, y.device).copy_(mine)
    for source in others:
        cut.decode(received[source][0], mine, low, add=True)
    # the sum is encoded once, and everyone, the owner too, decodes the same bytes
    (sealed,) = cut.messages(1)
    cut.encode(mine, low, sealed, SECOND_ENCODING)
    gathered = yield AllGather([sealed.bytes], cut.exact)
    for source, (a, b) in enumerate(cut.shards):
        cut.decode(gathered[source][0], total[a:b], a, add=False)
    if own is not None:
        for j, message in zip(others, messages, strict=True):
            a, b = cut.shards[j]
            if chunk.left:
                cut.take_off(message.bytes, y[a:b], own[a:b], a)
            else:
                cut.decode(message.bytes, own[a:b], a, add=False)
        torch.sub(y[low:high], mine.sub_(total[low:high]), out=own[low:high])
        if chunk.left:
            y[low:high].sub_(own[low:high])


def _ring_encoded(links: Sequence[Link], y: Tensor, rank: int, ranks: int) -> Rounds[tuple[Tensor, Tensor]]:
    """Decode, add and encode at every hop; each rank books the errors of the encodings it made."""
    cut = _Cut(links, y.numel(), ranks, Buffers(), y.device)
    own = y.clone()

    def sealed(j: int, values: Tensor, hop: int) -> Tensor:
        low, high = cut.shards[j]
        (message,) = cut.messages(1)
        cut.encode(values, low, message, hop * SECOND_ENCODING)
        delivered = torch.empty_like(values)
        cut.decode(message.bytes, delivered, low, add=False)
        own[low:high] -= values - delivered
        return message.bytes

    def passed_on(message: Tensor) -> Rounds[Tensor]:
        sizes = [message.numel()] if cut.exact else None
        received, _ = yield SendRecv([message], (rank + 1) % ranks, (rank - 1) % ranks, sizes)
        arrived: Tensor = received[0]
        return arrived

    low, high = cut.shards[rank]
    message = sealed(rank, y[low:high], 0)
    for hop in range(1, ranks):
        received = yield from passed_on(message)
        j = (rank - hop) % ranks
        low, high = cut.shards[j]
        values = y[low:high].clone()
        cut.decode(received, values, low, add=True)
        message = sealed(j, values, hop)
    total = torch.empty_like(y)
    for hop in range(ranks):
        low, high = cut.shards[(rank + 1 - hop) % ranks]
        cut.decode(message, total[low:high], low, add=False)
        if hop < ranks - 1:
            message = yield from passed_on(message)
    return total, own


def shard_length(wire: Sequence[Stage], spec: Spec, ranks: int) -> int:
    """ceil(n/P) numbers, rounded up to what the first wire stage wants to keep together."""
    grain = wire[0].grain(spec) if wire else 1
    grains = -(-spec.numel // grain)
    return -(-grains // ranks) * grain


def _moved(links: Sequence[Link], numel: int, base: int, salt: int) -> list[Link]:
    """The links as they work on `numel` numbers from position `base` on."""
    specs = _specs(tuple(link.stage for link in links), links[0].scene.spec, numel)
    return [
        Link(stage, scene.moved(spec=spec, base=scene.base + base, stream=scene.stream + salt))
        for (stage, scene), spec in zip(links, specs, strict=False)
    ]


@lru_cache(maxsize=4096)
def _specs(stages: tuple[Stage, ...], spec: Spec, numel: int) -> tuple[Spec, ...]:
    """What each stage sees of `numel` numbers that are like those of `spec`."""
    specs = [replace(spec, numel=numel, shape=())]
    for stage in stages:
        specs.append(stage.out(specs[-1]))
    return tuple(specs)


def _size(links: Sequence[Link], numel: int) -> Size:
    stages = tuple(link.stage for link in links)
    return message_size(stages, _specs(stages, links[0].scene.spec, numel)[0])


@dataclass
class _Message:
    """The bytes of one shard, once it is encoded; of fixed size, they lie in memory that was there before."""

    bytes: Tensor


class _Cut:
    """Numbers cut into a shard for each rank; the last ones may be shorter or empty.

    In chains of fixed size a shorter shard's message is filled up, so that all of one round are equally long.
    """

    def __init__(self, links: Sequence[Link], numel: int, ranks: int, buffers: Buffers, device: torch.device) -> None:
        spec = replace(links[0].scene.spec, numel=numel)
        shard = shard_length([link.stage for link in links], spec, ranks)
        self.shards = [(min(j * shard, numel), min((j + 1) * shard, numel)) for j in range(ranks)]
        self.links, self.buffers, self.device = links, buffers, device
        self.full = _size(links, self.shards[0][1])
        self.exact = self.full.exact

    def messages(self, count: int) -> list[_Message]:
        """Messages to be encoded, one behind the other in memory, so that they can leave as they lie."""
        size = int(self.full) if self.exact else 0
        block = self.buffers.empty(count * size, torch.uint8, self.device)
        return [_Message(block[i * size : (i + 1) * size]) for i in range(count)]

    def encode(self, values: Tensor, base: int, message: _Message, salt: int = 0) -> None:
        """Of the shard at position `base`; `salt` tells further encodings of the same numbers apart."""
        moved = _moved(self.links, values.numel(), base, salt)
        if self.exact:
            encode_message_into(moved, values, message.bytes)
        else:
            message.bytes = encode_message(moved, values)

    def decode(self, message: Tensor, out: Tensor, base: int, add: bool) -> None:
        decode_message(_moved(self.links, out.numel(), base, 0), self._trimmed(message, out.numel()), out, add)

    def take_off(self, message: Tensor, y: Tensor, scratch: Tensor, base: int) -> None:
        take_off(_moved(self.links, y.numel(), base, 0), self._trimmed(message, y.numel()), y, scratch)

    def _trimmed(self, message: Tensor, numel: int) -> Tensor:
        """Without what fills it up."""
        return message[: _size(self.links, numel)] if self.exact else message
