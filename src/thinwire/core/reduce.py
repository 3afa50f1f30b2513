"""How the numbers of the sum space are summed over the ranks.

summed    the backend's own all-reduce; for additive chains
sharded   every rank sends each peer its shard as a message, sums in fp32, encodes the sum once, all-gathers
gathered  every rank sends its whole message to all
ring      the papers' ring: additive chains add what they receive, the others decode, add and encode at every hop

Each returns the sum, and this rank's own contribution as it was delivered: by linearity the contributions of
all ranks add up to the sum, so that a residual `given - own` on each rank holds exactly what is missing. The
owner of a shard books the error of the second encoding as its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from thinwire.core.ops import LENGTH_BYTES, AllGather, AllReduce, AllToAll, Rounds, SendRecv
from thinwire.core.ring import Encodeds, ring
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import Stage
from thinwire.core.staggered import staggered
from thinwire.core.wire import Link, decode_message, encode_message, message_size
from thinwire.errors import CodecError

REDUCTIONS = ("summed", "sharded", "gathered", "ring")
ROUND_COST = 16 * 1024  # bytes that a thin link carries in the time of one more round
CHUNK = 1 << 20  # numbers of a long tensor that travel together
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


def reduction_bytes(kind: str, wire: Sequence[Stage], spec: Spec, ranks: int, piece: int = 1) -> Size:
    """Bytes a rank sends; a ring of additive chains keeps `piece` numbers together."""
    if spec.numel == 0:
        return Size(0)
    if not wire:
        together = piece if kind == "ring" else 1
        shard = -(-(spec.numel // together) // ranks) * together
        return Size(2 * (ranks - 1) * shard * (spec.bits // 8), spec.exact)
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
    step = -(-CHUNK // grain) * grain
    return [(low, min(low + step, numel)) for low in range(0, numel, step)]


def reduce(
    kind: str, links: Sequence[Link], y: Tensor, rank: int, ranks: int, want_own: bool
) -> Rounds[tuple[Tensor, Tensor]]:
    """Sum y over the ranks; returns the sum and this rank's contribution to it."""
    if y.numel() == 0:
        return y, y
    if kind == "summed":
        # a backend sums in place, and a stage that changes nothing hands on the very tensor it was given
        (total,) = yield AllReduce([y.clone() if want_own else y])
        return total, y
    if kind == "ring":
        return (yield from (_ring_encoded(links, y, rank, ranks) if links else ring(Encodeds(y), rank, ranks)))
    total, own = torch.empty_like(y), torch.empty_like(y) if want_own else None
    chunks = []
    for low, high in chunk_bounds(kind, [link.stage for link in links], replace(links[0].scene.spec, numel=y.numel())):
        cut = slice(low, high)
        chunk = _Chunk(_moved(links, high - low, low, 0), y[cut], total[cut], own[cut] if own is not None else None)
        chunks.append(_gathered(chunk) if kind == "gathered" else _sharded(chunk, rank, ranks))
    yield from staggered(chunks) if len(chunks) > 1 else chunks[0]
    return total, y if own is None else own


@dataclass(frozen=True)
class _Chunk:
    """Numbers to be summed, and where the sum and this rank's contribution to it are wanted."""

    links: Sequence[Link]
    y: Tensor
    total: Tensor
    own: Tensor | None


def _gathered(chunk: _Chunk) -> Rounds[None]:
    links, y = chunk.links, chunk.y
    message = encode_message(links, y)
    replies = yield AllGather([message], exact=_size(links, y.numel()).exact)
    for source, (received,) in enumerate(replies):
        decode_message(links, received, chunk.total, add=source > 0)
    if chunk.own is not None:
        decode_message(links, message, chunk.own)


def _sharded(chunk: _Chunk, rank: int, ranks: int) -> Rounds[None]:
    links, y, total, own = chunk.links, chunk.y, chunk.total, chunk.own
    shards = _shards(links, y.numel(), ranks)
    exact = _size(links, shards[0][1]).exact
    parts = [[] if j == rank else [_shard_message(links, y, shards[j], shards[0], exact)] for j in range(ranks)]
    received = yield AllToAll(parts, exact)
    low, high = shards[rank]
    mine = y[low:high].clone()  # this rank's own share needs no encoding: it does not travel
    for source in range(ranks):
        if source != rank:
            _decode_shard(links, received[source][0], mine, low, exact, add=True)
    # the sum is encoded once, and everyone, the owner too, decodes the same bytes
    sealed = _shard_message(links, mine, (0, high - low), shards[0], exact, base=low, salt=SECOND_ENCODING)
    gathered = yield AllGather([sealed], exact)
    for source, (a, b) in enumerate(shards):
        _decode_shard(links, gathered[source][0], total[a:b], a, exact, add=False)
    if own is not None:
        for j, (a, b) in enumerate(shards):
            if j != rank:
                _decode_shard(links, parts[j][0], own[a:b], a, exact, add=False)
        own[low:high] = y[low:high] - (mine - total[low:high])


def _ring_encoded(links: Sequence[Link], y: Tensor, rank: int, ranks: int) -> Rounds[tuple[Tensor, Tensor]]:
    """Decode, add and encode at every hop; each rank books the errors of the encodings it made."""
    shards = _shards(links, y.numel(), ranks)
    exact = _size(links, shards[0][1]).exact
    own = y.clone()

    def sealed(j: int, values: Tensor, hop: int) -> Tensor:
        low, high = shards[j]
        message = _shard_message(links, values, (0, high - low), shards[0], exact, low, hop * SECOND_ENCODING)
        delivered = torch.empty_like(values)
        _decode_shard(links, message, delivered, low, exact, add=False)
        own[low:high] -= values - delivered
        return message

    def passed_on(message: Tensor) -> Rounds[Tensor]:
        sizes = [message.numel()] if exact else None
        received, _ = yield SendRecv([message], (rank + 1) % ranks, (rank - 1) % ranks, sizes)
        arrived: Tensor = received[0]
        return arrived

    low, high = shards[rank]
    message = sealed(rank, y[low:high], 0)
    for hop in range(1, ranks):
        received = yield from passed_on(message)
        j = (rank - hop) % ranks
        values = y[shards[j][0] : shards[j][1]].clone()
        _decode_shard(links, received, values, shards[j][0], exact, add=True)
        message = sealed(j, values, hop)
    total = torch.empty_like(y)
    for hop in range(ranks):
        j = (rank + 1 - hop) % ranks
        _decode_shard(links, message, total[shards[j][0] : shards[j][1]], shards[j][0], exact, add=False)
        if hop < ranks - 1:
            message = yield from passed_on(message)
    return total, own


def shard_length(wire: Sequence[Stage], spec: Spec, ranks: int) -> int:
    """ceil(n/P) numbers, rounded up to what the first wire stage wants to keep together."""
    grain = wire[0].grain(spec) if wire else 1
    grains = -(-spec.numel // grain)
    return -(-grains // ranks) * grain


def _shards(links: Sequence[Link], numel: int, ranks: int) -> list[tuple[int, int]]:
    """The bounds of each rank's shard; the last ones may be shorter or empty."""
    shard = shard_length([link.stage for link in links], replace(links[0].scene.spec, numel=numel), ranks)
    return [(min(j * shard, numel), min((j + 1) * shard, numel)) for j in range(ranks)]


def _moved(links: Sequence[Link], numel: int, base: int, salt: int) -> list[Link]:
    """The links as they work on `numel` numbers from position `base` on."""
    spec = replace(links[0].scene.spec, numel=numel, shape=())
    moved = []
    for link in links:
        scene = replace(link.scene, spec=spec, base=link.scene.base + base, stream=link.scene.stream + salt)
        moved.append(Link(link.stage, scene))
        spec = link.stage.out(spec)
    return moved


def _size(links: Sequence[Link], numel: int) -> Size:
    return message_size(tuple(link.stage for link in links), replace(links[0].scene.spec, numel=numel, shape=()))


def _shard_message(
    links: Sequence[Link],
    values: Tensor,
    bounds: tuple[int, int],
    full: tuple[int, int],
    exact: bool,
    base: int | None = None,
    salt: int = 0,
) -> Tensor:
    """The message of one shard; a shorter shard's is filled up, so that all of one round are equally long."""
    low, high = bounds
    moved = _moved(links, high - low, low if base is None else base, salt)
    message = encode_message(moved, values[low:high])
    if exact and high - low < full[1] - full[0]:
        message = torch.nn.functional.pad(message, (0, _size(links, full[1] - full[0]) - message.numel()))
    return message


def _decode_shard(links: Sequence[Link], message: Tensor, out: Tensor, base: int, exact: bool, add: bool) -> None:
    moved = _moved(links, out.numel(), base, 0)
    if exact:
        message = message[: _size(links, out.numel())]
    decode_message(moved, message, out, add)
