"""The operations that rounds yield and worlds perform.

Every operation carries a list of items, so that the rounds of several segments can share one collective
(`core.coalesced`). Items are flat tensors, those of a journey (`Hops`) what gives and takes them. `exact` says
that each rank knows the sizes it will receive because all ranks send the same ones; otherwise the world sends
every length first, as `LENGTH_BYTES` bytes, and refuses one above `longest` before it reserves memory.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
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
        return sum(2 * (ranks - 1) * -(-t.numel() // ranks) * t.element_size() for t in self.items)


@dataclass(frozen=True, eq=False)
class AllGather:
    """Every rank receives all ranks' items: a list for each rank.

    Items of unequal length go round a ring, where each rank passes on what came to the next: however long those of one
    rank are, no link carries them twice.
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
    """Rank r sends parts[j] to rank j and receives a list for each rank; its own list is handed back."""

    parts: Sequence[Sequence[Tensor]]
    exact: bool = True
    longest: int = LONGEST

    def sent(self, rank: int, ranks: int) -> int:
        return sum(item_bytes(t, self.exact) for j, items in enumerate(self.parts) if j != rank for t in items)


@dataclass(frozen=True, eq=False)
class Broadcast:
    """Every rank receives root's items; the others' items only tell shape and type."""

    items: Sequence[Tensor]
    root: int

    def sent(self, rank: int, ranks: int) -> int:
        return (ranks - 1) * sum(t.numel() * t.element_size() for t in self.items) if rank == self.root else 0


@dataclass(frozen=True, eq=False)
class SendRecv:
    """Send items to one rank and receive items of the same count and type from another.

    `meanwhile` is computed while the bytes are under way; the reply is (received items, its result).
    """

    items: Sequence[Tensor]
    to: int
    source: int
    sizes: Sequence[int] | None
    meanwhile: Callable[[], Any] | None = None
    longest: int = LONGEST

    def sent(self, rank: int, ranks: int) -> int:
        return sum(item_bytes(t, self.sizes is not None) for t in self.items) if self.to != rank else 0


class Leg(NamedTuple):
    """One exchange of a journey: whom to send to, whom to hear from, and what must have been taken before it."""

    to: int
    source: int
    needs: int = -1  # the leg whose items make those of this one, each the one in its place; -1: none


@dataclass
class Traffic:
    """Bytes of a journey so far."""

    sent: int = 0
    received: int = 0


class Carried(Protocol):
    """Something that sends and receives one message in every leg of a journey."""

    size: int | None  # bytes of each message, if all ranks know them
    about: int  # bytes that all ranks expect
    longest: int  # bytes that a message can have at most
    traffic: Traffic

    def prepare(self, leg: int) -> bool:
        """Do a little of the work for what will be given; False: there is more of it."""

    def give(self, leg: int) -> Tensor:
        """What is sent; it must last until it is gone."""

    def gone(self, leg: int) -> None:
        """What was given has been sent: it may be overwritten."""

    def take(self, leg: int, message: Tensor) -> None:
        """What came; it lasts as long as the call."""


@dataclass(frozen=True, eq=False)
class Hops:
    """A journey of several exchanges, one after the other, with work in between done while messages travel.

    Every leg carries a message of each item. The world asks for that of item i with `given(leg, i)` and hands over
    what came in its place with `taken(leg, i, message)`: before item i of a leg that needs this one, and otherwise
    while the next leg's messages are under way. `spares` do a little work that nobody waits for, each time they are
    called, and return False if there is none; a world may call them where it would have to wait.
    """

    legs: Sequence[Leg]
    items: Sequence[Carried]
    device: torch.device
    spares: Sequence[Callable[[], bool]] = ()

    @property
    def sizes(self) -> list[int] | None:
        """Of a leg's messages, if all ranks know them."""
        sizes = [item.size for item in self.items]
        return None if None in sizes else sizes  # type: ignore[return-value]

    def prepared(self, leg: int, at: int) -> bool:
        """Whether item i can be asked for without long work; some of that work is done, if not. Nobody has to ask."""
        return self.items[at].prepare(leg)

    def given(self, leg: int, at: int) -> Tensor:
        item = self.items[at]
        message = item.give(leg)
        item.traffic.sent += item_bytes(message, exact=False) if item.size is None else item.size
        return message

    def gone(self, leg: int, at: int) -> None:
        self.items[at].gone(leg)

    def taken(self, leg: int, at: int, message: Tensor) -> None:
        item = self.items[at]
        item.traffic.received += item_bytes(message, exact=False) if item.size is None else item.size
        item.take(leg, message)

    def sent(self, rank: int, ranks: int) -> int:
        """Bytes of the journey, once it has been made."""
        return sum(item.traffic.sent for item in self.items)


@dataclass(frozen=True, eq=False)
class Begin:
    """Start an operation and go on; the reply is a ticket for `Finish`."""

    op: "Collective"


@dataclass(frozen=True, eq=False)
class Finish:
    """Wait for an operation begun earlier; the reply is that operation's."""

    ticket: Any


Collective: TypeAlias = AllReduce | AllGather | AllToAll | Broadcast | SendRecv | Hops
Op: TypeAlias = Collective | Begin | Finish
Rounds: TypeAlias = Generator[Op, Any, T]


def merged(journeys: Sequence[Hops]) -> Hops:
    """Journeys of the same legs as one: each leg carries the items of all, in their order."""
    items = [item for journey in journeys for item in journey.items]
    spares = [spare for journey in journeys for spare in journey.spares]
    return Hops(journeys[0].legs, items, journeys[0].device, spares)


def item_bytes(item: Tensor, exact: bool) -> int:
    return item.numel() * item.element_size() + (0 if exact else LENGTH_BYTES)


def longest_message(numel: int) -> int:
    """Bytes above which no chain's message of so many numbers is: several times what the costliest chain needs."""
    return min(32 * numel + (1 << 16), LONGEST)


def checked_lengths(lengths: list[int]) -> list[int]:
    """Of messages that are sent."""
    for length in lengths:
        if not 0 <= length <= LONGEST:
            raise WireError(f"a message has 0 to {LONGEST} bytes, not {length}; average smaller tensors.")
    return lengths


def announced_lengths(lengths: list[int], longest: int, source: int) -> list[int]:
    """Of messages that rank `source` will send, checked before memory is reserved for them."""
    for length in lengths:
        if not 0 <= length <= longest:
            raise WireError(
                f"rank {source} announced a message of {length} bytes, where 0 to {longest} are possible;"
                " all ranks must average the same tensors with the same codecs, in the same order."
            )
    return lengths


@contextmanager
def sent_by(source: int) -> Iterator[None]:
    """Name the rank whose message cannot be decoded."""
    try:
        yield
    except WireError as reason:
        raise WireError(f"the message of rank {source} cannot be decoded: {reason}") from reason


def sent_bytes(op: Collective, reply: Any, rank: int, ranks: int) -> int:
    """Bytes that a rank sent in an operation, of which this is the reply."""
    return op.sent(rank, ranks, reply) if isinstance(op, AllGather) else op.sent(rank, ranks)


def received_bytes(op: Collective, reply: Any, rank: int, ranks: int) -> int:
    """Bytes that the reply to an operation brought."""
    if isinstance(op, AllReduce):
        return op.sent(rank, ranks)
    if isinstance(op, Broadcast):
        return 0 if rank == op.root else sum(item_bytes(t, True) for t in reply)
    if isinstance(op, SendRecv):
        return 0 if op.to == rank else sum(item_bytes(t, op.sizes is not None) for t in reply[0])
    if isinstance(op, Hops):
        return sum(item.traffic.received for item in op.items)
    return sum(item_bytes(t, op.exact) for source, items in enumerate(reply) if source != rank for t in items)


def rounds_in(op: Op) -> int:
    """How often the ranks wait for each other in an operation."""
    return len(op.legs) if isinstance(op, Hops) else 0 if isinstance(op, Finish) else 1
