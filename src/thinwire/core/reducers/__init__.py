"""How the elements of the sum space are summed over the ranks, one file for each way, with its cost.

summed     the backend's own all-reduce; for chains of transforms
pipelined  the same in parts that overlap, where the last transform offers them
sharded    every rank sends each peer its shard as a message, sums in fp32, encodes the sum once
gathered   every rank sends its whole message to all
ring       the papers' ring: transforms add what they receive, wire coders decode, add and encode at every hop
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from thinwire.core.context import STEADY
from thinwire.core.fast import PartCoder
from thinwire.core.message import message_size
from thinwire.core.ops import Rounds
from thinwire.core.reducers import gathered, pipelined, ring, sharded, summed
from thinwire.core.reducers.work import Reduced, Work
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import Stage, Transform, WireCoder, fast_path
from thinwire.errors import CodecError

REDUCTIONS = ("summed", "sharded", "gathered", "ring")
ROUND_COST = 16 * 1024  # bytes that a thin link carries in the time of one more round

_RUN = {"summed": summed.summed, "sharded": sharded.sharded, "gathered": gathered.gathered, "ring": ring.ring}


def reduce(kind: str, work: Work) -> Rounds[Reduced]:
    """Sum the work's source over the ranks."""
    if work.source.numel == 0:
        return Reduced(work.source.values, work.source.values)
    return (yield from _RUN[kind](work))


def choose_reduction(
    coders: Sequence[Stage], spec: Spec, ranks: int, wish: str | None = None, bundle_numel: int = 0
) -> str:
    """The wished reduction if it is legal; else what a coder prefers, or the cheapest legal one by bytes and rounds.

    `bundle_numel`: how many elements travel in the same rounds; what is short goes along with what is long.
    """
    return _chosen(tuple(coders), spec, ranks, wish, bundle_numel)


@lru_cache(maxsize=4096)
def _chosen(coders: tuple[Stage, ...], spec: Spec, ranks: int, wish: str | None, bundle_numel: int) -> str:
    """The same for stages that can be found again: every step asks."""
    legal = ("sharded", "gathered", "ring") if coders else ("summed", "ring")
    preferred = (coder.preferred_reduction for coder in coders if isinstance(coder, WireCoder))
    wish = wish or next((kind for kind in preferred if kind), None)
    if wish is not None:
        if wish not in REDUCTIONS:
            raise CodecError(f"there is no reduction {wish!r}; known are {', '.join(REDUCTIONS)}.")
        if wish not in legal:
            what = f"what {coders[0].name} sends cannot be summed" if coders else "the chain is additive"
            raise CodecError(f"reduction {wish!r} does not fit: {what}; use {' or '.join(legal)}.")
        return wish
    return _cheapest(coders, spec, max(spec.numel, bundle_numel), ranks)


def _cheapest(coders: tuple[Stage, ...], spec: Spec, numel: int, ranks: int) -> str:
    if not coders:
        return "summed"
    spec = replace(spec, numel=numel, shape=spec.shape if numel == spec.numel else ())
    # a ring is never cheaper: the bytes of sharded with 2(P-1) dependent rounds
    costs = {
        kind: reduction_bytes(kind, coders, spec, ranks) + rounds_of(kind, coders, spec) * ROUND_COST
        for kind in ("sharded", "gathered")
    }
    return min(costs, key=lambda kind: costs[kind])


def rounds_of(kind: str, coders: Sequence[Stage], spec: Spec) -> int:
    lengths = 1 if message_size(tuple(coders), spec).exact else 2
    return {"summed": 1, "gathered": lengths, "sharded": 2 * lengths, "ring": 2 * lengths}[kind]


def reduction_bytes(kind: str, coders: Sequence[Stage], spec: Spec, ranks: int, length: int | None = None) -> Size:
    """Bytes a rank sends; `length`: the last transform sums parts of so many elements."""
    if spec.numel == 0:
        return Size(0)
    if kind == "ring":
        return ring.cost(coders, spec, ranks, length or 1)
    if kind == "summed":
        return pipelined.cost(spec, length, ranks) if length else summed.cost(spec, ranks)
    return gathered.cost(coders, spec, ranks) if kind == "gathered" else sharded.cost(coders, spec, ranks)


def chain_bytes(
    transforms: Sequence[Transform], coders: Sequence[Stage], spec: Spec, ranks: int, wish: str | None = None
) -> Size:
    """Bytes a rank sends through a chain that has started up, to agree and to sum."""
    total, parts = Size(0), None
    for stage in transforms:
        if (instead := stage.instead(STEADY, spec)) is not None:
            coders, parts, wish, spec = instead, None, None, Spec.of((spec.numel,))
            break
        total = total.plus(stage.agreement(spec, ranks))
        fast = fast_path(stage, spec)
        parts, spec = fast if isinstance(fast, PartCoder) else None, stage.out(spec)
    for coder in coders:
        total = total.plus(coder.agreement(spec, ranks))
    kind = choose_reduction(coders, spec, ranks, wish)
    if kind == "summed" and parts is not None:
        total = total.plus(pipelined.exchange_bytes(parts, spec.numel, ranks))
    return total.plus(reduction_bytes(kind, coders, spec, ranks, None if parts is None else parts.length))
