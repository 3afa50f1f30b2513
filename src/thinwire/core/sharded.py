"""The sharded sum: rank j sums shard j of all ranks in fp32, encodes the sum once, and sends it to all.

Short messages go in two rounds, an all-to-all and an all-gather. Long ones go hop by hop: in hop h every rank sends to
the h-th rank after it and receives from the h-th before it. So each receiver has one sender at a time, where an
all-to-all lets all senders meet at one switch port and lose packets; and while a message travels, the next one is
encoded and the one before decoded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from thinwire.core.buffers import Buffers
from thinwire.core.cut import Cut, Decode
from thinwire.core.given import Flow
from thinwire.core.ops import AllGather, AllToAll, Hops, Leg, Rounds, Traffic, longest_message, sent_by
from thinwire.core.wire import Link
from thinwire.kernels.shares import share_into

Want: TypeAlias = Literal["nothing", "own", "left"]

SECOND_ENCODING = 64  # added to a stage's stream for each further encoding, so that draws stay independent
LONG = 1 << 17  # bytes from which a message is worth a hop of its own


@dataclass(frozen=True)
class Numbers:
    """Numbers to be summed, memory for the sum, and what is wanted of this rank's contribution.

    own       it is written into `own`
    left      it is taken off y
    nothing   y may be overwritten
    """

    links: Sequence[Link]
    y: Tensor
    total: Tensor
    own: Tensor
    want: Want
    buffers: Buffers
    flow: Flow | None = None  # None: y is there, and nobody waits for the sum's numbers

    def shard(self, bounds: tuple[int, int]) -> Tensor:
        """Numbers of y that are wanted for the first time."""
        if self.flow is not None:
            self.flow.make(*bounds)
        return self.y[bounds[0] : bounds[1]]

    def empty(self, numel: int) -> Tensor:
        return self.buffers.empty(numel, self.y.dtype, self.y.device)


def sharded(numbers: Numbers, rank: int, ranks: int, crowd: float = 1.0) -> Rounds[bool | None]:
    """Write the sum into `numbers.total`; returns whether it is finite, if its messages tell.

    Messages are long if those of all tensors in the same rounds are, `crowd` times as many bytes: what is short goes
    along with what is long. Very long ones travel in slices, of which some are worked on while others travel.
    """
    cut = Cut.of(numbers.links, numbers.y.numel(), ranks, numbers.buffers, numbers.y.device)
    if ranks > 1 and cut.full * crowd >= LONG:
        free = list[Tensor]()
        works = [_Sharded(numbers, part, rank, ranks, free) for part in cut.slices()]
        spares = [numbers.flow.spare] if numbers.flow is not None else []
        yield Hops(_legs(rank, ranks), works, numbers.y.device, spares)
    else:
        works = [_Sharded(numbers, cut, rank, ranks, [])]
        yield from works[0].at_once()
    while numbers.flow is not None and numbers.flow.spare():
        pass
    told = [work.finite for work in works]
    return None if None in told else all(told)


@lru_cache(maxsize=1024)
def _legs(rank: int, ranks: int) -> tuple[Leg, ...]:
    """First all shards to their owners, then all sums to everyone; a sum needs the last shard that is added to it."""
    hops = range(1, ranks)
    needs = [-1 for _ in hops] + [ranks - 2 for _ in hops]
    peers = [((rank + hop) % ranks, (rank - hop) % ranks) for hop in (*hops, *hops)]
    return tuple(Leg(to, source, need) for (to, source), need in zip(peers, needs, strict=True))


class _Sharded:
    """One rank's part in a sharded sum. All that can be prepared is, before the first message."""

    def __init__(self, numbers: Numbers, cut: Cut, rank: int, ranks: int, free: list[Tensor]) -> None:
        """`free`: memory of messages that are sent, for those that are made."""
        self.numbers, self.cut, self.rank, self.ranks = numbers, cut, rank, ranks
        low, high = cut.shards[0]
        self.size = int(cut.full) if cut.exact else None
        self.about = 4 * (high - low) if self.size is None else self.size  # not what was measured on one machine
        self.longest = longest_message(high - low)
        self.traffic = Traffic()
        self.finite: bool | None = True
        self.others = [(rank + hop) % ranks for hop in range(1, ranks)]
        self.sum, self._sum_begun = self._room_for_sum(), False
        self.free = free
        low, _ = cut.shards[rank]
        self._encode = cut.encoder(numbers.y, divisor=numbers.links[0].scene.divisor)
        self._seal = cut.encoder(self.sum, low, SECOND_ENCODING)
        self._add = cut.decoder(self.sum, low, add=True)
        self._put = cut.decoder(numbers.total)
        self._book = self._booker()
        self.messages: list[Tensor] = []  # made, and not sent yet
        self.sealed = torch.empty(0, dtype=torch.uint8)

    def at_once(self) -> Rounds[None]:
        parts: list[list[Tensor]] = [[] for _ in range(self.ranks)]
        for at, j in enumerate(self.others):
            parts[j] = [self._made(at)]
        for at in range(len(self.others)):
            self._booked(at)
        received = yield AllToAll(parts, self.cut.exact, self.longest)
        for j in reversed(self.others):
            self._added(received[j][0], j)
        gathered = yield AllGather([self._sealed()], self.cut.exact, self.longest)
        for j in range(self.ranks):
            self._written(gathered[j][0], j)
        self._book_second_encoding()

    def prepare(self, leg: int) -> bool:
        if self.numbers.flow is None or leg >= len(self.others):
            return True
        return self.numbers.flow.prepare(*self.cut.shards[self.others[leg]])

    def give(self, leg: int) -> Tensor:
        sums = leg - (self.ranks - 1)
        if sums < 0:
            return self._made(leg)
        return self._sealed() if sums == 0 else self.sealed

    def gone(self, leg: int) -> None:
        sums = leg - (self.ranks - 1)
        if sums < 0:
            self._booked(leg)
        elif sums == 0:
            self._written(self.sealed, self.rank)
            self._book_second_encoding()

    def take(self, leg: int, message: Tensor) -> None:
        sums = leg - (self.ranks - 1)
        if sums < 0:
            self._added(message, (self.rank - leg - 1) % self.ranks)
        else:
            self._written(message, (self.rank - sums - 1) % self.ranks)

    def _room_for_sum(self) -> Tensor:
        """Where this rank's own shard is, or will be, and the others' are added; it does not travel.

        Where what is left is wanted, it is written here at the end."""
        numbers, (low, high) = self.numbers, self.cut.shards[self.rank]
        elsewhere = numbers.links[0].scene.divisor > 1 or numbers.want == "own"
        return numbers.empty(high - low) if elsewhere else numbers.y[low:high]

    def _begin_sum(self) -> None:
        if self._sum_begun:
            return
        self._sum_begun = True
        mine, divisor = self.numbers.shard(self.cut.shards[self.rank]), self.numbers.links[0].scene.divisor
        if divisor > 1:
            share_into(mine, divisor, None, self.sum)
        elif self.numbers.want == "own":
            self.sum.copy_(mine)

    def _booker(self) -> Decode | None:
        """What notes what a message delivers of this rank's numbers, as far as that is wanted."""
        if self.numbers.want == "own":
            return self.cut.decoder(self.numbers.own)
        if self.numbers.want == "left":
            # a shard of the mean is written much later; from what is in others, shards may still be made
            return self.cut.remover(self.numbers.y, self.numbers.total)
        return None

    def _made(self, at: int) -> Tensor:
        """This rank's numbers of another's shard, encoded."""
        if self.numbers.flow is not None:
            self.numbers.flow.make(*self.cut.shards[self.others[at]])
        self.messages.append(self._encode(self.others[at], self._memory()))
        return self.messages[-1]

    def _memory(self) -> Tensor | None:
        if not self.cut.exact:
            return None
        fits = self.free and self.free[-1].numel() >= self.cut.full
        return self.free.pop()[: int(self.cut.full)] if fits else self.cut.memory()

    def _booked(self, at: int) -> None:
        message = self.messages.pop(0)
        if self._book is not None:
            with sent_by(self.rank):
                self._book(self.others[at], message)
        if self.cut.exact:
            self.free.append(message)

    def _added(self, message: Tensor, source: int) -> None:
        self._begin_sum()
        with sent_by(source):
            self._add(self.rank, message)

    def _sealed(self) -> Tensor:
        """The sum, encoded once: everyone, the owner too, decodes the same bytes."""
        self._begin_sum()
        self.sealed = self._seal(self.rank)
        return self.sealed

    def _written(self, sealed: Tensor, j: int) -> None:
        with sent_by(j):
            self._put(j, sealed)
        if self.numbers.flow is not None:
            self.numbers.flow.come(*self.cut.shards[j])
        if self.finite:
            self.finite = self.cut.tells_finite(sealed, j)

    def _book_second_encoding(self) -> None:
        """Its error is the owner's: sum - total on the owner's shard."""
        numbers = self.numbers
        low, high = self.cut.shards[self.rank]
        if numbers.want == "own":
            torch.sub(numbers.y[low:high], self.sum.sub_(numbers.total[low:high]), out=numbers.own[low:high])
        elif numbers.want == "left":
            torch.sub(self.sum, numbers.total[low:high], out=numbers.y[low:high])
