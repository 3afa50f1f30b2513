"""A world without a network: two ranks of any number are walked through their rounds, and each operation is noted.

The ranks do the same, so that two of them show what all send. Ranks 0 and 1 run the generators that training runs. What
the other ranks would send to them is made of what these two send to each other, which has the same size. The bytes and
rounds are those of the other worlds; the results are not means of anything and are thrown away.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeVar

from torch import Tensor

from thinwire.core.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Begin,
    Broadcast,
    Collective,
    Finish,
    Op,
    PipelinedExchange,
    Rounds,
    SendRecv,
    received_bytes,
    rounds_in,
    sent_bytes,
)
from thinwire.errors import WorldError
from thinwire.worlds.simulated import reduced

T = TypeVar("T")

KINDS: dict[type, str] = {
    AllReduce: "reduce",
    AllGather: "gather",
    AllToAll: "gather",
    Broadcast: "gather",
    SendRecv: "gather",
    PipelinedExchange: "exchange",
}


@dataclass(frozen=True)
class Operation:
    """One operation of a rank.

    Args:
        kind: `"reduce"`, `"gather"` (every short exchange of messages) or `"exchange"`.
        sent: Bytes that the rank sends.
        received: Bytes that it receives.
        rounds: How often the ranks wait for each other.
        frames: Parts of which some are encoded or decoded while others are in flight.
        before: Seconds of work since the operation before it.
        inside: Seconds of work while it is in flight.
        overlapped: It was begun, and other operations were begun before it was waited for.
        key: Operations of one kind and key that are due at the same time share a collective.
    """

    kind: str
    sent: int
    received: int
    rounds: int
    frames: int = 1
    before: float = 0.0
    inside: float = 0.0
    overlapped: bool = False
    key: str = ""


@dataclass(frozen=True)
class Walk:
    """What one rank does in some rounds, in order; `after`: seconds of work after the last operation."""

    operations: tuple[Operation, ...]
    after: float = 0.0

    @property
    def before(self) -> float:
        """Seconds of work until the last operation begins."""
        return sum(operation.before for operation in self.operations)

    @property
    def inside(self) -> float:
        """Seconds of work while operations are in flight."""
        return sum(operation.inside for operation in self.operations)

    @property
    def sent(self) -> int:
        return sum(operation.sent for operation in self.operations)

    @property
    def received(self) -> int:
        return sum(operation.received for operation in self.operations)

    @property
    def rounds(self) -> int:
        return sum(operation.rounds for operation in self.operations)


@dataclass
class _Record:
    operations: list[Operation] = field(default_factory=list)
    before: float = 0.0
    inside: float = 0.0
    scattered: list[AllToAll] = field(default_factory=list)  # the last one of each walked rank


def walk(rounds: Callable[[int], Rounds[Any]], ranks: int) -> Walk:
    """What rank 0 of so many does in its rounds.

    Args:
        rounds: Makes the rounds of a rank, 0 or 1.
        ranks: The number of ranks.
    """
    record = _Record()
    generators = [rounds(rank) for rank in range(min(ranks, 2))]
    replies: list[Any] = [None] * len(generators)
    while True:
        ops: list[Op] = []
        ended = 0
        for rank, generator in enumerate(generators):
            began = perf_counter()
            try:
                ops.append(generator.send(replies[rank]))
            except StopIteration:
                ended += 1
            if rank == 0:
                record.before += perf_counter() - began
        if ended == len(generators):
            return Walk(tuple(record.operations), record.before)
        if ended or len({type(op) for op in ops}) > 1:
            raise WorldError(f"the walked ranks disagree: {[type(op).__name__ for op in ops]}, {ended} ended.")
        replies = _perform(ops, ranks, record)


def _perform(ops: list[Any], ranks: int, record: _Record) -> list[Any]:
    """Replies to one operation of each walked rank; what is begun is performed at once, and its reply is the ticket."""
    first = ops[0]
    if isinstance(first, Finish):
        return [op.ticket for op in ops]
    begun = isinstance(first, Begin)
    started: list[Any] = [op.op for op in ops] if begun else ops
    replies = _replies(started, ranks, record)
    record.operations.append(_noted(started[0], replies[0], ranks, record, begun))
    return replies


def _noted(op: Collective, reply: Any, ranks: int, record: _Record, begun: bool) -> Operation:
    frames = max(1, len(op.items)) if isinstance(op, PipelinedExchange) else 1
    sent, received = sent_bytes(op, reply, 0, ranks), received_bytes(op, reply, 0, ranks)
    before, inside, record.before, record.inside = record.before, record.inside, 0.0, 0.0
    key = f"{op.how} {str(op.items[0].dtype).removeprefix('torch.')}" if isinstance(op, AllReduce) else ""
    return Operation(KINDS[type(op)], sent, received, rounds_in(op), frames, before, inside, begun, key)


def _replies(ops: list[Any], ranks: int, record: _Record) -> list[Any]:
    """The reply of each walked rank."""
    walked = len(ops)
    match ops[0]:
        case AllReduce(items, how):
            totals = [_total([op.items[i] for op in ops], how, ranks) for i in range(len(items))]
            return [[total.clone() for total in totals] for _ in ops]
        case AllToAll():
            record.scattered = list(ops)
            other = [ops[(rank + 1) % walked] for rank in range(walked)]
            return [
                [[t.clone() for t in (ops[rank] if j == rank else other[rank]).parts[rank]] for j in range(ranks)]
                for rank in range(walked)
            ]
        case AllGather():
            return [[_gathered(ops, rank, j, record) for j in range(ranks)] for rank in range(walked)]
        case Broadcast(_, root):
            return [[t.clone() for t in ops[root if root < walked else walked - 1].items] for _ in ops]
        case SendRecv():
            asides = [_timed(op.meanwhile, rank, record) if op.meanwhile else None for rank, op in enumerate(ops)]
            sources = [op.source if op.source < walked else walked - 1 - rank for rank, op in enumerate(ops)]
            return [([t.clone() for t in ops[source].items], aside) for source, aside in zip(sources, asides)]  # noqa: B905
        case PipelinedExchange():
            return _exchange(ops, record)
        case _:
            raise WorldError(f"no world performs {type(ops[0]).__name__}.")


def _total(tensors: list[Tensor], how: str, ranks: int) -> Tensor:
    """The sum over all ranks, if those that are not walked have what the last walked one has; or the max or min."""
    total = reduced(tensors, how)
    return total.add_(tensors[-1], alpha=ranks - len(tensors)) if how == "sum" and ranks > len(tensors) else total


def _gathered(ops: list[AllGather], rank: int, source: int, record: _Record) -> list[Tensor]:
    """The items of a source. After an all-to-all they are sums of shards, as long as what was sent to the source."""
    if source < len(ops):
        return [t.clone() for t in ops[source].items]
    sums = record.scattered[rank].parts[source] if record.scattered else ()
    alike = not ops[rank].exact and len(sums) == len(ops[rank].items)
    return [t.clone() for t in (sums if alike else ops[-1].items)]


def _timed(function: Callable[..., T], rank: int, record: _Record, *args: Any) -> T:
    began = perf_counter()
    result = function(*args)
    if rank == 0:
        record.inside += perf_counter() - began
    return result


def _exchange(ops: list[PipelinedExchange], record: _Record) -> list[None]:
    """First all messages that need nothing, then those made of what has arrived."""
    sent: list[dict[int, list[Tensor]]] = [{} for _ in ops]  # of each walked rank, by receiver
    hops = range(len(ops[0].hops))
    for hop in (h for h in hops if ops[0].hops[h].needs < 0):
        for rank, op in enumerate(ops):
            sent[rank][op.hops[hop].to] = _messages(op, hop, rank, record)
    for hop in (h for h in hops if ops[0].hops[h].needs < 0):
        for rank, op in enumerate(ops):
            _deliver(op, hop, sent[1 - rank][rank], rank, record)
    for hop in (h for h in hops if ops[0].hops[h].needs >= 0):
        sums = [_messages(op, hop, rank, record) for rank, op in enumerate(ops)]
        for rank, op in enumerate(ops):
            source = op.hops[hop].source
            _deliver(op, hop, sums[source] if source < len(ops) else sent[rank][source], rank, record)
    return [None] * len(ops)


def _messages(op: PipelinedExchange, hop: int, rank: int, record: _Record) -> list[Tensor]:
    messages = []
    for index in range(len(op.items)):
        message: Tensor = _timed(op.next_message, rank, record, hop, index)
        messages.append(message.clone())
        _timed(op.on_sent, rank, record, hop, index)
    return messages


def _deliver(op: PipelinedExchange, hop: int, messages: list[Tensor], rank: int, record: _Record) -> None:
    for index, message in enumerate(messages):
        _timed(op.on_message, rank, record, hop, index, message)
