"""Several segments' rounds as one: in each round, operations of one kind share a collective."""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from thinwire.core.ops import AllGather, AllReduce, AllToAll, Broadcast, Op, PipelinedExchange, Rounds, SendRecv, merged

T = TypeVar("T")


def coalesced(rounds: Sequence[Rounds[T]]) -> Rounds[list[T]]:
    """Run all rounds in lock-step and return their results in order.

    Ranks that run the same segments in the same order yield the same merged operations.
    """
    results: dict[int, T] = {}
    waiting: dict[int, Op] = {}

    def advance(i: int, reply: Any) -> None:
        try:
            waiting[i] = rounds[i].send(reply)
        except StopIteration as end:
            results[i] = end.value

    for i in range(len(rounds)):
        advance(i, None)
    while waiting:
        current, waiting = waiting, {}
        for indices in _groups(current):
            replies = yield from _perform_merged([current[i] for i in indices])
            for i, reply in zip(indices, replies, strict=True):
                advance(i, reply)
    return [results[i] for i in range(len(rounds))]


def _groups(pending: dict[int, Op]) -> list[list[int]]:
    """Indices whose operations can share a collective, in order of their first segment."""
    groups: dict[Hashable, list[int]] = {}
    for i in sorted(pending):
        groups.setdefault(_sort(i, pending[i]), []).append(i)
    return list(groups.values())


def _sort(i: int, op: Op) -> Hashable:
    match op:
        case AllReduce(items, how):
            return ("reduce", how, items[0].dtype, items[0].device)
        case AllGather(items, exact):
            return ("gather", exact, items[0].device)
        case AllToAll(parts, exact):
            return ("scatter", exact, next((items[0].device for items in parts if items), None))
        case Broadcast(items, root):
            return ("broadcast", root, items[0].dtype, items[0].device)
        case SendRecv(items, to, source, sizes):
            return ("send", to, source, sizes is None, items[0].dtype, items[0].device)
        case PipelinedExchange(hops, _, device):
            return ("hops", tuple(hops), op.sizes is None, device)
        case _:
            return i


def _perform_merged(ops: list[Op]) -> Rounds[list[Any]]:
    """Yield one operation for all of these and return the reply of each."""
    first = ops[0]
    if len(ops) == 1:
        return [(yield first)]
    if isinstance(first, AllToAll):
        counts = [max(len(items) for items in op.parts) for op in ops if isinstance(op, AllToAll)]
        peers = range(len(first.parts))
        scattered: Op = AllToAll([[t for op in ops for t in op.parts[j]] for j in peers], first.exact, _longest(ops))  # type: ignore[union-attr]
        received = yield scattered
        return [[items[a:b] for items in received] for a, b in _ranges(counts)]
    if isinstance(first, PipelinedExchange):
        return [(yield merged([op for op in ops if isinstance(op, PipelinedExchange)]))] * len(ops)
    counts = [len(op.items) for op in ops]  # type: ignore[union-attr]
    items = [t for op in ops for t in op.items]  # type: ignore[union-attr]
    if isinstance(first, SendRecv):
        received, asides = yield _merged_sends([op for op in ops if isinstance(op, SendRecv)])
        return [(received[a:b], aside) for (a, b), aside in zip(_ranges(counts), asides, strict=True)]
    if isinstance(first, AllGather):
        reply = yield replace(first, items=items, longest=_longest(ops))  # type: ignore[arg-type]
        return [[items[a:b] for items in reply] for a, b in _ranges(counts)]
    reply = yield replace(first, items=items)  # type: ignore[arg-type]
    return [reply[a:b] for a, b in _ranges(counts)]


def _merged_sends(ops: list[SendRecv]) -> SendRecv:
    """One operation for all of these; it calls the `meanwhile` of each."""
    items = [t for op in ops for t in op.items]
    sizes = None if ops[0].sizes is None else [size for op in ops for size in op.sizes or ()]
    return replace(
        ops[0],
        items=items,
        sizes=sizes,
        meanwhile=lambda: [op.meanwhile() if op.meanwhile else None for op in ops],
        longest=_longest(ops),
    )


def _longest(ops: Sequence[Any]) -> int:
    longest: int = max(op.longest for op in ops)
    return longest


def _ranges(counts: list[int]) -> list[tuple[int, int]]:
    ends = [sum(counts[: i + 1]) for i in range(len(counts))]
    return [(end - count, end) for end, count in zip(ends, counts, strict=True)]
