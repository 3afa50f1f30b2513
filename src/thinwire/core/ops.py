"""The operations that rounds yield and worlds perform.

Every operation carries a list of items, so that the rounds of several segments can share one collective
(`core.together`). Items are flat tensors. `exact` says that each rank knows the sizes it will receive
because all ranks send the same ones; otherwise the world sends every length first, as `LENGTH_BYTES` bytes.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

LENGTH_BYTES = 4

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
    """Every rank receives all ranks' items: a list for each rank."""

    items: Sequence[Tensor]
    exact: bool = True

    def sent(self, rank: int, ranks: int) -> int:
        return (ranks - 1) * sum(item_bytes(t, self.exact) for t in self.items)


@dataclass(frozen=True, eq=False)
class AllToAll:
    """Rank r sends parts[j] to rank j and receives a list for each rank; its own list is handed back."""

    parts: Sequence[Sequence[Tensor]]
    exact: bool = True

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


@dataclass(frozen=True, eq=False)
class Hops:
    """A journey of several exchanges, one after the other, with work in between done while messages travel.

    Every leg carries `count` items. The world asks for item i of leg h with `given(h, i)` and hands over what came in
    its place with `taken(h, i, item)`: before item i of a leg that needs this one, and otherwise while the next leg's
    items are under way. What is given must last until it has been sent and the same leg's item is taken; what is taken
    lasts as long as the call. `sizes` are those of a leg's items, if all ranks know them.
    """

    legs: Sequence[Leg]
    count: int
    sizes: Sequence[int] | None
    device: torch.device
    give: Callable[[int, int], Tensor]
    take: Callable[[int, int, Tensor], None]
    traffic: Traffic = field(default_factory=Traffic)

    def given(self, leg: int, at: int) -> Tensor:
        item = self.give(leg, at)
        self.traffic.sent += item_bytes(item, self.sizes is not None)
        return item

    def taken(self, leg: int, at: int, item: Tensor) -> None:
        self.traffic.received += item_bytes(item, self.sizes is not None)
        self.take(leg, at, item)

    def sent(self, rank: int, ranks: int) -> int:
        """Bytes of the journey, once it has been made."""
        return self.traffic.sent


@dataclass(frozen=True, eq=False)
class Begin:
    """Start an operation and go on; the reply is a ticket for `Finish`."""

    op: "Collective"

    def sent(self, rank: int, ranks: int) -> int:
        return self.op.sent(rank, ranks)


@dataclass(frozen=True, eq=False)
class Finish:
    """Wait for an operation begun earlier; the reply is that operation's."""

    ticket: Any

    def sent(self, rank: int, ranks: int) -> int:
        return 0


Collective: TypeAlias = AllReduce | AllGather | AllToAll | Broadcast | SendRecv | Hops
Op: TypeAlias = Collective | Begin | Finish
Rounds: TypeAlias = Generator[Op, Any, T]


def merged(journeys: Sequence[Hops]) -> Hops:
    """Journeys of the same legs as one: each leg carries the items of all, in their order."""
    first = journeys[0]
    if len(journeys) == 1:
        return first
    owners = [(journey, at) for journey in journeys for at in range(journey.count)]
    sizes = None if first.sizes is None else [size for journey in journeys for size in journey.sizes or ()]

    def give(leg: int, at: int) -> Tensor:
        journey, its = owners[at]
        return journey.given(leg, its)

    def take(leg: int, at: int, item: Tensor) -> None:
        journey, its = owners[at]
        journey.taken(leg, its, item)

    return Hops(first.legs, len(owners), sizes, first.device, give, take)


def item_bytes(item: Tensor, exact: bool) -> int:
    return item.numel() * item.element_size() + (0 if exact else LENGTH_BYTES)


def received_bytes(op: Collective, reply: Any, rank: int, ranks: int) -> int:
    """Bytes that the reply to an operation brought."""
    if isinstance(op, AllReduce):
        return op.sent(rank, ranks)
    if isinstance(op, Broadcast):
        return 0 if rank == op.root else sum(item_bytes(t, True) for t in reply)
    if isinstance(op, SendRecv):
        return 0 if op.to == rank else sum(item_bytes(t, op.sizes is not None) for t in reply[0])
    if isinstance(op, Hops):
        return op.traffic.received
    return sum(item_bytes(t, op.exact) for source, items in enumerate(reply) if source != rank for t in items)


def rounds_in(op: Op) -> int:
    """How often the ranks wait for each other in an operation."""
    return len(op.legs) if isinstance(op, Hops) else 0 if isinstance(op, Finish) else 1
