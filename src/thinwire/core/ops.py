"""The operations that rounds yield and worlds perform.

Every operation has a list of items, so that the rounds of several segments can share one collective
(`core.coalesced`). Items are flat tensors; those of a `PipelinedExchange` are objects that make and receive messages.
`exact` says that each rank knows the sizes it will receive, because all ranks send the same ones. Otherwise the world
sends every length first, as `LENGTH_BYTES` bytes. It refuses a length above `longest` before it reserves memory.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from thinwire.errors import WireError

LENGTH_BYTES = 4
LONGEST = 2**31 - 1  # bytes of a message

T = TypeVar("T")
How: TypeAlias = Literal["sum", "max", "min"]


@dataclass(frozen=True, eq=False)
class AllReduce:
    """Every rank receives the elementwise sum (or max, min) of all ranks' items."""

    items: Sequence[Tensor]
    how: How = "sum"

    def sent(self, rank: int, ranks: int) -> int:
        """Bytes of a bandwidth-optimal all-reduce: 2(P-1) segments of ceil(n/P) numbers."""
        segments = 0
        for item in self.items:  # a generator takes twice as long, and each tensor is counted four times
            segments += -(-item.numel() // ranks) * item.element_size()
        return 2 * (ranks - 1) * segments


@dataclass(frozen=True, eq=False)
class AllGather:
    """Every rank receives all ranks' items: a list for each rank.

    Items of unequal length go round a ring: each rank forwards what it receives to the next one. However long the items
    of one rank are, no link carries them twice.
    """

    items: Sequence[Tensor]
    exact: bool = True
    longest: int = LONGEST

    def sent(self, rank: int, ranks: int, reply: Sequence[Sequence[Tensor]]) -> int:
        """Bytes of all items but those of the next rank."""
        others = [items for source, items in enumerate(reply) if source != (rank + 1) % ranks]
        return 0 if ranks == 1 else sum(item_bytes(t, self.exact) for items in others for t in items)


@dataclass(frozen=True, eq=False)
class AllToAll:
    """Rank r sends parts[j] to rank j and receives a list for each rank; its own list is returned as it is."""

    parts: Sequence[Sequence[Tensor]]
    exact: bool = True
    longest: int = LONGEST

    def sent(self, rank: int, ranks: int) -> int:
        return sum(item_bytes(t, self.exact) for j, items in enumerate(self.parts) if j != rank for t in items)


@dataclass(frozen=True, eq=False)
class Broadcast:
    """Every rank receives root's items; the items of the other ranks only define shape and type."""

    items: Sequence[Tensor]
    root: int

    def sent(self, rank: int, ranks: int) -> int:
        return (ranks - 1) * sum(t.numel() * t.element_size() for t in self.items) if rank == self.root else 0


@dataclass(frozen=True, eq=False)
class SendRecv:
    """Send items to one rank and receive items of the same count and type from another.

    `meanwhile` is computed while the bytes are in flight; the reply is (received items, its result).
    """

    items: Sequence[Tensor]
    to: int
    source: int
    sizes: Sequence[int] | None
    meanwhile: Callable[[], Any] | None = None
    longest: int = LONGEST

    def sent(self, rank: int, ranks: int) -> int:
        return sum(item_bytes(t, self.sizes is not None) for t in self.items) if self.to != rank else 0


class Hop(NamedTuple):
    """One step of a pipelined exchange: this rank sends to one rank and receives from another."""

    to: int
    source: int
    needs: int = -1  # the hop whose received messages this one's are made of, item by item; -1: none


@dataclass
class Traffic:
    """Bytes of an exchange so far."""

    sent: int = 0
    received: int = 0


class MessageSource(Protocol):
    """An item of a pipelined exchange: it sends and receives one message in every hop."""

    size: int | None  # bytes of each message, if all ranks know them
    expected_size: int  # bytes that all ranks expect
    longest: int  # bytes that a message can have at most
    traffic: Traffic

    def prepare(self, hop: int) -> bool:
        """Do a part of the work for the next message; False: there is more of it."""

    def next_message(self, hop: int) -> Tensor:
        """The message to send. It must not change before `on_sent`."""

    def on_sent(self, hop: int) -> None:
        """The message has been sent: its memory may be overwritten."""

    def on_message(self, hop: int, message: Tensor) -> None:
        """A message has arrived. Its memory is valid during this call only."""


@dataclass(frozen=True, eq=False)
class PipelinedExchange:
    """Several hops, one after the other; items encode and decode while other messages are in flight.

    Every hop sends one message of each item. The world asks item i for it with `next_message(hop, i)` and passes it the
    message that it received with `on_message(hop, i, message)`. If a later hop needs this one, the world does so before
    it asks item i for the message of that hop; otherwise it does so while messages of the next hop are in flight.

    Each call of an `on_idle` function does a part of some work that no message waits for. It returns False if there is
    none. A world may call these functions where it would have to wait.
    """

    hops: Sequence[Hop]
    items: Sequence[MessageSource]
    device: torch.device
    on_idle: Sequence[Callable[[], bool]] = ()

    @property
    def sizes(self) -> list[int] | None:
        """Bytes of the messages of a hop, if all ranks know them."""
        sizes = [item.size for item in self.items]
        return None if None in sizes else sizes  # type: ignore[return-value]

    def prepare(self, hop: int, index: int) -> bool:
        """Do a part of the work for a message; True: all of it is done. A world need not call this."""
        return self.items[index].prepare(hop)

    def next_message(self, hop: int, index: int) -> Tensor:
        item = self.items[index]
        message = item.next_message(hop)
        item.traffic.sent += item_bytes(message, exact=False) if item.size is None else item.size
        return message

    def on_sent(self, hop: int, index: int) -> None:
        self.items[index].on_sent(hop)

    def on_message(self, hop: int, index: int, message: Tensor) -> None:
        item = self.items[index]
        item.traffic.received += item_bytes(message, exact=False) if item.size is None else item.size
        item.on_message(hop, message)

    def sent(self, rank: int, ranks: int) -> int:
        """Bytes that were sent; all of them once the exchange has ended."""
        return sum(item.traffic.sent for item in self.items)


@dataclass(frozen=True, eq=False)
class Begin:
    """Start an operation and continue; the reply is a ticket for `Finish`."""

    op: "Collective"


@dataclass(frozen=True, eq=False)
class Finish:
    """Wait for an operation that was started earlier; the reply is that operation's."""

    ticket: Any


Collective: TypeAlias = AllReduce | AllGather | AllToAll | Broadcast | SendRecv | PipelinedExchange
Op: TypeAlias = Collective | Begin | Finish
Rounds: TypeAlias = Generator[Op, Any, T]


def merged(exchanges: Sequence[PipelinedExchange]) -> PipelinedExchange:
    """One exchange for several that have the same hops: each hop sends the items of all, in their order."""
    items = [item for exchange in exchanges for item in exchange.items]
    on_idle = [function for exchange in exchanges for function in exchange.on_idle]
    return PipelinedExchange(exchanges[0].hops, items, exchanges[0].device, on_idle)


def item_bytes(item: Tensor, exact: bool) -> int:
    return item.numel() * item.element_size() + (0 if exact else LENGTH_BYTES)


def longest_message(numel: int) -> int:
    """The most bytes of a message of so many elements: several times what the costliest chain needs."""
    return min(32 * numel + (1 << 16), LONGEST)


def checked_lengths(lengths: list[int]) -> list[int]:
    """The lengths of messages to send, unless one is too long."""
    for length in lengths:
        if not 0 <= length <= LONGEST:
            raise WireError(f"a message has 0 to {LONGEST} bytes, not {length}; average smaller tensors.")
    return lengths


def announced_lengths(lengths: list[int], longest: int, source: int) -> list[int]:
    """The lengths of messages that rank `source` will send, checked before memory is reserved for them."""
    for length in lengths:
        if not 0 <= length <= longest:
            raise WireError(
                f"rank {source} announced a message of {length} bytes, where 0 to {longest} are possible;"
                " all ranks must average the same tensors with the same codecs, in the same order."
            )
    return lengths


class sent_by:
    """Name the rank whose message cannot be decoded. A generator takes several times as long."""

    __slots__ = ("source",)

    def __init__(self, source: int) -> None:
        self.source = source

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, reason: BaseException | None, trace: object) -> None:
        if isinstance(reason, WireError):
            raise WireError(f"the message of rank {self.source} cannot be decoded: {reason}") from reason


def sent_bytes(op: Collective, reply: Any, rank: int, ranks: int) -> int:
    """Bytes that a rank sent in an operation, of which this is the reply."""
    return op.sent(rank, ranks, reply) if isinstance(op, AllGather) else op.sent(rank, ranks)


def received_bytes(op: Collective, reply: Any, rank: int, ranks: int) -> int:
    """Bytes that a rank received in an operation, of which this is the reply."""
    if isinstance(op, AllReduce):
        return op.sent(rank, ranks)
    if isinstance(op, Broadcast):
        return 0 if rank == op.root else sum(item_bytes(t, True) for t in reply)
    if isinstance(op, SendRecv):
        return 0 if op.to == rank else sum(item_bytes(t, op.sizes is not None) for t in reply[0])
    if isinstance(op, PipelinedExchange):
        return sum(item.traffic.received for item in op.items)
    return sum(item_bytes(t, op.exact) for source, items in enumerate(reply) if source != rank for t in items)


def rounds_in(op: Op) -> int:
    """How often the ranks wait for each other in an operation."""
    return len(op.hops) if isinstance(op, PipelinedExchange) else 0 if isinstance(op, Finish) else 1
