"""The sharded sum: rank j sums shard j of all ranks in fp32, encodes the sum once, and sends it to all.

Short messages go in two rounds, an all-to-all and an all-gather. Long ones go hop by hop: in hop h every rank sends to
the h-th rank after it and receives from the h-th before it. So each receiver has one sender at a time, where an
all-to-all lets all senders meet at one switch port and lose packets; and while a message travels, the next one is
encoded and the one before decoded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from thinwire.core.buffers import Buffers
from thinwire.core.given import Make
from thinwire.core.ops import AllGather, AllToAll, Hops, Leg, Rounds, merged
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import Stage
from thinwire.core.wire import Link, decode_message, encode_message, encode_message_into, message_size, take_off
from thinwire.kernels.shares import share_into

Want: TypeAlias = Literal["nothing", "own", "left"]

SECOND_ENCODING = 64  # added to a stage's stream for each further encoding, so that draws stay independent
LONG = 1 << 17  # bytes from which a message is worth a hop of its own
HALF = 1 << 18  # bytes from which half a message is worth being one of its own


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
    make: Make | None = None  # asked for numbers of y that are wanted for the first time

    def shard(self, bounds: tuple[int, int]) -> Tensor:
        """Numbers of y that are wanted for the first time."""
        if self.make is not None:
            self.make(*bounds)
        return self.y[bounds[0] : bounds[1]]

    def empty(self, numel: int) -> Tensor:
        return self.buffers.empty(numel, self.y.dtype, self.y.device)


def sharded(numbers: Numbers, rank: int, ranks: int, crowd: float = 1.0) -> Rounds[bool | None]:
    """Write the sum into `numbers.total`; returns whether it is finite, if its messages tell.

    Messages are long if those of all tensors in the same rounds are, `crowd` times as many bytes: what is short goes
    along with what is long. Very long ones travel as two halves, of which one is worked on while the other travels.
    """
    cut = Cut.of(numbers.links, numbers.y.numel(), ranks, numbers.buffers, numbers.y.device)
    if ranks > 1 and cut.full * crowd >= LONG:
        works = [_Sharded(numbers, half, rank, ranks) for half in cut.halves()]
        yield merged([work.journey() for work in works])
    else:
        works = [_Sharded(numbers, cut, rank, ranks)]
        yield from works[0].at_once()
    for work in works:
        work.book_second_encoding()
    told = [work.finite for work in works]
    return None if None in told else all(told)


class _Sharded:
    """One rank's part in a sharded sum."""

    def __init__(self, numbers: Numbers, cut: "Cut", rank: int, ranks: int) -> None:
        self.numbers, self.cut, self.rank, self.ranks = numbers, cut, rank, ranks
        self.finite: bool | None = True
        self.sealed = torch.empty(0, dtype=torch.uint8)
        self.messages: dict[int, Tensor] = {}

    def at_once(self) -> Rounds[None]:
        others = [(self.rank + hop) % self.ranks for hop in range(1, self.ranks)]
        parts: list[list[Tensor]] = [[] for _ in range(self.ranks)]
        for j in others:
            parts[j] = [self._message(j)]
            self._book(j)
        received = yield AllToAll(parts, self.cut.exact)
        for j in reversed(others):
            self._add(received[j][0])
        gathered = yield AllGather([self._seal()], self.cut.exact)
        for j in range(self.ranks):
            self._put(gathered[j][0], j)

    def journey(self) -> Hops:
        """First all shards to their owners, then all sums to everyone."""
        way = [(hop, sums) for sums in (False, True) for hop in range(1, self.ranks)]
        # a message is sent and booked before the second after it is made
        memory = [self.cut.memory(), self.cut.memory()] if self.cut.exact else [None, None]

        def give(leg: int, _: int) -> Tensor:
            hop, sums = way[leg]
            if not sums:
                return self._message((self.rank + hop) % self.ranks, memory[leg % 2])
            return self._seal() if hop == 1 else self.sealed

        def take(leg: int, _: int, message: Tensor) -> None:
            hop, sums = way[leg]
            if not sums:
                self._book((self.rank + hop) % self.ranks)
                self._add(message)
                return
            if hop == 1:
                self._put(self.sealed, self.rank)
            self._put(message, (self.rank - hop) % self.ranks)

        needs = self.ranks - 2  # a sum needs the last shard that is added to it
        legs = [
            Leg((self.rank + hop) % self.ranks, (self.rank - hop) % self.ranks, needs if sums else -1)
            for hop, sums in way
        ]
        sizes = [int(self.cut.full)] if self.cut.exact else None
        return Hops(legs, 1, sizes, self.numbers.y.device, give, take)

    @cached_property
    def sum(self) -> Tensor:
        """This rank's own shard, to which the others' are added; it needs no encoding, as it does not travel."""
        numbers = self.numbers
        low, high = self.cut.shards[self.rank]
        mine, divisor = numbers.shard((low, high)), numbers.links[0].scene.divisor
        if divisor > 1:
            share_into(mine, divisor, None, share := numbers.empty(high - low))
            return share
        # where what is left is wanted, it is written here at the end
        return numbers.empty(high - low).copy_(mine) if numbers.want == "own" else mine

    def _message(self, j: int, memory: Tensor | None = None) -> Tensor:
        """This rank's numbers of shard j, encoded."""
        self.messages[j] = self.cut.encoded(self.numbers.shard(self.cut.shards[j]), j, memory=memory)
        return self.messages[j]

    def _book(self, j: int) -> None:
        """What the message of shard j delivers of this rank's numbers, as far as that is wanted."""
        numbers, message = self.numbers, self.messages.pop(j)
        low, high = self.cut.shards[j]
        if numbers.want == "own":
            self.cut.decode(message, numbers.own[low:high], j, add=False)
        elif numbers.want == "left":
            # this shard of the mean is written much later; from what is in others, shards may still be made
            scratch = numbers.total[low:high]
            self.cut.take_off(message, numbers.y[low:high], j, scratch)

    def _add(self, message: Tensor) -> None:
        self.cut.decode(message, self.sum, self.rank, add=True)

    def _seal(self) -> Tensor:
        """The sum, encoded once: everyone, the owner too, decodes the same bytes."""
        self.sealed = self.cut.encoded(self.sum, self.rank, SECOND_ENCODING)
        return self.sealed

    def _put(self, sealed: Tensor, j: int) -> None:
        low, high = self.cut.shards[j]
        self.cut.decode(sealed, self.numbers.total[low:high], j, add=False)
        if self.finite:
            self.finite = self.cut.tells_finite(sealed, j)

    def book_second_encoding(self) -> None:
        """Its error is the owner's: sum - total on the owner's shard."""
        numbers = self.numbers
        low, high = self.cut.shards[self.rank]
        if numbers.want == "own":
            torch.sub(numbers.y[low:high], self.sum.sub_(numbers.total[low:high]), out=numbers.own[low:high])
        elif numbers.want == "left":
            torch.sub(self.sum, numbers.total[low:high], out=numbers.y[low:high])


def shard_length(wire: Sequence[Stage], spec: Spec, ranks: int) -> int:
    """ceil(n/P) numbers, rounded up to what the first wire stage wants to keep together."""
    grain = wire[0].grain(spec) if wire else 1
    grains = -(-spec.numel // grain)
    return -(-grains // ranks) * grain


class Cut:
    """Numbers cut into a shard for each rank; the last ones may be shorter or empty.

    In chains of fixed size a shorter shard's message is filled up, so that all of one round are equally long.
    """

    def __init__(
        self,
        links: Sequence[Link],
        shards: Sequence[tuple[int, int]],
        full: Size,
        buffers: Buffers,
        device: torch.device,
    ) -> None:
        """`full`: bytes of the message of the first shard, which no other is longer than."""
        self.links, self.shards, self.full, self.buffers, self.device = links, shards, full, buffers, device
        self.exact = full.exact
        self._seen: dict[int, list[Link]] = {}

    @classmethod
    def of(cls, links: Sequence[Link], numel: int, ranks: int, buffers: Buffers, device: torch.device) -> "Cut":
        stages = tuple(link.stage for link in links)
        return cls(links, *_shards(stages, links[0].scene.spec, numel, ranks), buffers, device)

    def halves(self) -> "list[Cut]":
        """The first and the second halves of the shards, if they are long and their messages say what one would."""
        seam = self.links[0].stage.seam(self.links[0].scene.spec) if len(self.links) == 1 else 0
        if not seam or self.full < 2 * HALF:
            return [self]
        middle = (self.shards[0][1] // 2) // seam * seam
        first = [(low, min(low + middle, high)) for low, high in self.shards]
        second = [(half, high) for (_, half), (_, high) in zip(first, self.shards, strict=True)]
        return [self._narrowed(shards) for shards in (first, second) if shards[0][0] < shards[0][1]]

    def _narrowed(self, shards: list[tuple[int, int]]) -> "Cut":
        low, high = shards[0]
        return Cut(self.links, shards, size_of(self.links, high - low), self.buffers, self.device)

    def memory(self) -> Tensor:
        """Of the length of a message, in chains of fixed size."""
        return self.buffers.empty(int(self.full), torch.uint8, self.device)

    def encoded(self, values: Tensor, j: int, salt: int = 0, memory: Tensor | None = None) -> Tensor:
        """The message of shard j, in `memory` if that is given; `salt` tells further encodings of the same numbers
        apart, which are sums by then."""
        divisor = 1 if salt else self.links[0].scene.divisor
        links = [
            Link(stage, scene.moved(stream=scene.stream + salt, divisor=divisor)) for stage, scene in self._moved(j)
        ]
        if not self.exact:
            return encode_message(links, values)
        message = self.memory() if memory is None else memory
        encode_message_into(links, values, message)
        return message

    def decode(self, message: Tensor, out: Tensor, j: int, add: bool) -> None:
        decode_message(self._moved(j), self._trimmed(message, out.numel()), out, add)

    def take_off(self, message: Tensor, y: Tensor, j: int, scratch: Tensor) -> None:
        take_off(self._moved(j), self._trimmed(message, y.numel()), y, scratch)

    def tells_finite(self, message: Tensor, j: int) -> bool | None:
        """Whether what a message decodes to is finite, if it can be told from its bytes."""
        if len(self.links) > 1:
            return None
        (link,) = self._moved(j)
        return link.stage.tells_finite(self._trimmed(message, link.scene.spec.numel), link.scene)

    def _trimmed(self, message: Tensor, numel: int) -> Tensor:
        low, high = self.shards[0]
        filled_up = self.exact and numel < high - low
        return message[: size_of(self.links, numel)] if filled_up else message

    def _moved(self, j: int) -> list[Link]:
        """The links as they work on shard j, which is asked several times."""
        if (links := self._seen.get(j)) is not None:
            return links
        low, high = self.shards[j]
        specs = _specs(tuple(link.stage for link in self.links), self.links[0].scene.spec, high - low)
        links = self._seen[j] = [
            Link(stage, scene.moved(spec=spec, base=scene.base + low, divisor=1))
            for (stage, scene), spec in zip(self.links, specs, strict=False)
        ]
        return links


@lru_cache(maxsize=4096)
def _shards(stages: tuple[Stage, ...], spec: Spec, numel: int, ranks: int) -> tuple[list[tuple[int, int]], Size]:
    """The bounds of all shards, and the bytes of the first one's message."""
    shard = shard_length(stages, replace(spec, numel=numel), ranks)
    bounds = [(min(j * shard, numel), min((j + 1) * shard, numel)) for j in range(ranks)]
    return bounds, message_size(stages, _specs(stages, spec, bounds[0][1])[0])


@lru_cache(maxsize=4096)
def _specs(stages: tuple[Stage, ...], spec: Spec, numel: int) -> tuple[Spec, ...]:
    """What each stage sees of `numel` numbers that are like those of `spec`."""
    specs = [replace(spec, numel=numel, shape=())]
    for stage in stages:
        specs.append(stage.out(specs[-1]))
    return tuple(specs)


def size_of(links: Sequence[Link], numel: int) -> Size:
    """Bytes of the message of `numel` numbers."""
    stages = tuple(link.stage for link in links)
    return message_size(stages, _specs(stages, links[0].scene.spec, numel)[0])
