"""The operations of gradients that share their rounds, from specs alone: any size, any number of ranks, no data.

Tests compare every sketch with a walk of the generators themselves (`jobs`), and that with what is really sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from thinwire.core.buffers import Buffers
from thinwire.core.codec import Codec
from thinwire.core.context import STEADY, Context
from thinwire.core.fast import PartCoder
from thinwire.core.message import Link, message_size
from thinwire.core.ops import LENGTH_BYTES
from thinwire.core.reducers import choose_reduction, reduction_bytes
from thinwire.core.reducers.pipelined import exchange_bytes
from thinwire.core.reducers.sharded import LONG
from thinwire.core.shards import Shards, shard_length
from thinwire.core.spec import Spec
from thinwire.core.stage import Stage, fast_path
from thinwire.planner.jobs import Piece, made_up, settle
from thinwire.worlds.modelled import Operation, Walk

_TINY = (48, 64)  # a tensor whose walk shows what kind of operations a codec agrees by


@dataclass(frozen=True)
class _Sum:
    """The stages that carry the elements to their sum, and what they see."""

    coders: tuple[Stage, ...]
    spec: Spec
    length: int | None = None  # parts in which the last transform sums
    asked: int = 0  # bytes of the question whether parts can overflow


def sketch(
    codecs: Sequence[str], shapes: Sequence[tuple[int, ...]], ranks: int, dtypes: Sequence[str] | None = None
) -> Walk:
    """What a rank sends to average these gradients in the same rounds, once the codecs have started up.

    Args:
        codecs: The codec of each gradient, as text.
        shapes: The shape of each gradient.
        ranks: The number of ranks.
        dtypes: The type of each gradient's numbers, which is that of sums without a codec; None: float32.
    """
    if ranks == 1:
        return Walk(())
    coded = [(t, s) for t, s in zip(codecs, shapes, strict=True) if t != "none" and _numel(s)]
    plain: dict[str, list[tuple[int, ...]]] = {}
    for text, shape, dtype in zip(codecs, shapes, dtypes or ["float32"] * len(shapes), strict=True):
        if text == "none" and _numel(shape):
            plain.setdefault(dtype, []).append(shape)
    bundle = sum(_numel(shape) for _, shape in coded)
    aside = bool(coded) and all(Codec.parse(text).coders for text, _ in coded)
    columns: list[tuple[Operation, ...]] = [(_plain_sum(dtype, those, ranks, aside),) for dtype, those in plain.items()]
    columns += [piece_operations(text, shape, ranks, bundle) for text, shape in coded]
    return Walk(tuple(_merged(columns)))


def _plain_sum(dtype: str, shapes: Sequence[tuple[int, ...]], ranks: int, aside: bool) -> Operation:
    """The sum of what is not compressed; `aside`: it is in flight beside other operations."""
    size: int = getattr(torch, dtype).itemsize
    sent = sum(2 * (ranks - 1) * -(-_numel(shape) // ranks) * size for shape in shapes)
    return Operation("reduce", sent, sent, 1, overlapped=aside, key=f"sum {dtype}")


def _numel(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def _merged(columns: Sequence[Sequence[Operation]]) -> list[Operation]:
    """Operations of one kind in the same round share a collective; each column is the rounds of one gradient."""
    found: list[Operation] = []
    for at in range(max((len(column) for column in columns), default=0)):
        groups: dict[tuple[str, str, bool], Operation] = {}
        for column in columns:
            if at >= len(column):
                continue
            op = column[at]
            key = (op.kind, op.key, op.overlapped)
            before = groups.get(key)
            groups[key] = (
                op
                if before is None
                else replace(
                    before,
                    sent=before.sent + op.sent,
                    received=before.received + op.received,
                    frames=before.frames + op.frames,
                )
            )
        found += groups.values()
    return found


@lru_cache(maxsize=8192)
def piece_operations(text: str, shape: tuple[int, ...], ranks: int, bundle: int) -> tuple[Operation, ...]:
    """The operations of one gradient that shares its rounds with others, `bundle` elements in all."""
    codec, spec = Codec.parse(text), Spec.of(shape)
    agreed, last = _to_the_sum(codec, spec, ranks)
    pattern = _pattern(text)
    kinds = [(op.kind, op.key) for op in pattern[: len(agreed)]]
    kinds += [("reduce", f"agree {text}")] * (len(agreed) - len(kinds))
    operations = [Operation(kind, sent, sent, 1, key=key) for sent, (kind, key) in zip(agreed, kinds, strict=True)]
    return (*operations, *_sum_operations(last, ranks, bundle, max(bundle / spec.numel, 1.0)))


def _to_the_sum(codec: Codec, spec: Spec, ranks: int) -> tuple[list[int], _Sum]:
    """The bytes of each round in which stages agree, and what is summed then."""
    agreed: list[int] = []
    parts: PartCoder | None = None
    for stage in codec.transforms:
        instead = stage.instead(STEADY, spec)
        if instead is not None:
            return agreed, _Sum(tuple(instead), Spec(spec.numel))
        agreed += _agreement(stage, spec, ranks)
        fast = fast_path(stage, spec)
        parts, spec = fast if isinstance(fast, PartCoder) else None, stage.out(spec)
    seen = spec
    for coder in codec.coders:
        agreed += _agreement(coder, seen, ranks)
        seen = coder.out(seen)
    if parts is None or codec.coders:
        return agreed, _Sum(codec.coders, spec)
    return agreed, _Sum((), spec, parts.length, exchange_bytes(parts, spec.numel, ranks))


def _agreement(stage: Stage, spec: Spec, ranks: int) -> list[int]:
    size = int(stage.agreement(spec, ranks))
    return [size // stage.rounds] * stage.rounds if stage.rounds else []


def _sum_operations(what: _Sum, ranks: int, bundle: int, share: float) -> list[Operation]:
    """`share`: how many times as much as this gradient travels in the same rounds."""
    kind = choose_reduction(what.coders, what.spec, ranks, None, bundle)
    if kind == "summed":
        sent = int(reduction_bytes(kind, (), what.spec, ranks, what.length)) + what.asked
        return [Operation("reduce", sent, sent, 1, key=f"sum {what.spec.kind}")]
    if kind == "gathered":
        sent = int(reduction_bytes(kind, what.coders, what.spec, ranks))
        return [Operation("gather", sent, sent, 1, key="messages")]
    sizes, lengths = _messages(what.coders, what.spec, ranks, share)
    if sizes[0] * len(sizes) * share < LONG:
        each = (sizes[0] + lengths) * (ranks - 1)
        return [Operation("gather", each, each, 1, key="shards"), Operation("gather", each, each, 1, key="sums")]
    sent = 2 * (ranks - 1) * sum(size + lengths for size in sizes)
    return [Operation("exchange", sent, sent, 2 * (ranks - 1), len(sizes), key=f"lengths {lengths}")]


def _messages(coders: tuple[Stage, ...], spec: Spec, ranks: int, share: float) -> tuple[list[int], int]:
    """The bytes of the message of a shard, in slices where it is worth them, and the bytes that tell its length."""
    whole = message_size(coders, spec.part(min(spec.numel, shard_length(coders, spec, ranks))))
    if not whole.exact or whole * share < LONG:
        return [int(whole)], 0 if whole.exact else LENGTH_BYTES
    links, seen = list[Link](), spec
    for coder in coders:
        links.append(Link(coder, Context(seen, {}, ranks=ranks)))
        seen = coder.out(seen)
    shards = Shards.of(links, spec.numel, ranks, Buffers(), torch.device("cpu"))
    return [int(each.full) for each in shards.slices()], 0


@lru_cache(maxsize=256)
def _pattern(text: str) -> tuple[Operation, ...]:
    """The operations of a short tensor: the first ones are those by which the codec's stages agree."""
    piece = Piece(Codec.parse(text), made_up(_TINY), made_up(_TINY))
    return settle([piece], 2).operations
