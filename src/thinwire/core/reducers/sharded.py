"""The sharded sum: rank j sums shard j of all ranks in fp32, encodes the sum once, and sends it to all.

Short messages go in two rounds, an all-to-all and an all-gather. Long ones go hop by hop: in hop h every rank sends to
the h-th rank after it and receives from the h-th before it. So each receiver has one sender at a time, where an
all-to-all lets all senders meet at one switch port and lose packets; and while a message is in flight, the next one is
encoded and the one before decoded.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from thinwire.core.message import message_size
from thinwire.core.ops import (
    LENGTH_BYTES,
    AllGather,
    AllToAll,
    Hop,
    PipelinedExchange,
    Rounds,
    Traffic,
    longest_message,
    sent_by,
)
from thinwire.core.reducers.work import SECOND_ENCODING, Reduced, Work
from thinwire.core.shards import Decode, Shards, shard_length
from thinwire.core.source import Source
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import Stage
from thinwire.kernels.shares import enter_share

LONG = 1 << 17  # bytes from which a message is worth a hop of its own


def cost(coders: Sequence[Stage], spec: Spec, ranks: int) -> Size:
    """Bytes a rank sends: the messages of all shards but its own, and the sum of its own to each other rank."""
    size = message_size(tuple(coders), spec.part(min(spec.numel, shard_length(coders, spec, ranks))))
    return size.plus(0 if size.exact else LENGTH_BYTES).times(2 * (ranks - 1))


def sharded(work: Work) -> Rounds[Reduced]:
    """The sum, and whether it is finite, if its messages show it.

    Messages are long if those of all tensors in the same rounds are long together: short messages are sent with long
    ones. Very long messages are split into slices: the rank encodes or decodes one while others are in flight.
    """
    numel, device = work.source.numel, work.total.device
    shards = Shards.of(work.links, numel, work.ranks, work.buffers, device)
    kept = work.source.values if work.keep == "remainder" else work.empty(numel if work.keep == "delivered" else 0)
    if work.ranks > 1 and shards.full * work.bundle >= LONG:
        free = list[Tensor]()
        sums = [_ShardedSum(work, part, kept, free) for part in shards.slices()]
        idle = [work.sink.on_idle] if work.sink is not None else []
        yield PipelinedExchange(hops_of(work.rank, work.ranks), sums, device, idle)
    else:
        sums = [_ShardedSum(work, shards, kept, [])]
        yield from sums[0].at_once()
    while work.sink is not None and work.sink.on_idle():
        pass
    finite = [each.finite for each in sums]
    return Reduced(work.total, kept, None if None in finite else all(finite))


@lru_cache(maxsize=1024)
def hops_of(rank: int, ranks: int) -> tuple[Hop, ...]:
    """First all shards to their owners, then all sums to everyone; a sum needs the last shard that is added to it."""
    distances = range(1, ranks)
    needs = [-1 for _ in distances] + [ranks - 2 for _ in distances]
    peers = [((rank + distance) % ranks, (rank - distance) % ranks) for distance in (*distances, *distances)]
    return tuple(Hop(to, source, need) for (to, source), need in zip(peers, needs, strict=True))


class _ShardedSum:
    """One rank's part in a sharded sum. All that can be prepared is, before the first message."""

    def __init__(self, work: Work, shards: Shards, kept: Tensor, free: list[Tensor]) -> None:
        """`kept`: where the contribution or the remainder goes; `free`: memory of messages that are sent."""
        self.work, self.shards, self.kept, self.free = work, shards, kept, free
        self.rank, self.ranks = work.rank, work.ranks
        low, high = shards.bounds[0]
        self.size = int(shards.full) if shards.exact else None
        # all ranks must expect the same, so that it is not what was measured on one machine
        self.expected_size = 4 * (high - low) if self.size is None else self.size
        self.longest = longest_message(high - low)
        self.traffic = Traffic()
        self.finite: bool | None = True
        self.others = [(self.rank + hop) % self.ranks for hop in range(1, self.ranks)]
        low, high = shards.bounds[self.rank]
        self._own, self._begun = (low, high), False
        in_place = work.source.undivided() is None and work.keep != "delivered"
        self.sum = work.source.values[low:high] if in_place else work.empty(high - low)
        self._encode = shards.encoder(work.source)
        self._encode_sum = shards.encoder(Source(self.sum), low, SECOND_ENCODING)
        self._add = shards.decoder(self.sum, low, "add")
        self._put = shards.decoder(work.total)
        self._keep = self._keeper()
        self.messages: list[Tensor] = []  # made, and not sent yet
        self.encoded_sum = torch.empty(0, dtype=torch.uint8)

    def _keeper(self) -> Decode | None:
        """What notes what a message delivers of this rank's elements, as far as that is kept."""
        if self.work.keep == "nothing":
            return None
        return self.shards.decoder(self.kept, mode="subtract" if self.work.keep == "remainder" else "write")

    def at_once(self) -> Rounds[None]:
        parts: list[list[Tensor]] = [[] for _ in range(self.ranks)]
        for at, j in enumerate(self.others):
            parts[j] = [self._message(at)]
        for at in range(len(self.others)):
            self._sent(at)
        received = yield AllToAll(parts, self.shards.exact, self.longest)
        for j in reversed(self.others):
            self._received(received[j][0], j)
        gathered = yield AllGather([self._sum_message()], self.shards.exact, self.longest)
        for j in range(self.ranks):
            self._write(gathered[j][0], j)
        self._keep_second_encoding()

    def prepare(self, hop: int) -> bool:
        if hop >= len(self.others):
            return True
        return self.work.source.prepare(*self.shards.bounds[self.others[hop]])

    def next_message(self, hop: int) -> Tensor:
        sums = hop - (self.ranks - 1)
        if sums < 0:
            return self._message(hop)
        return self._sum_message() if sums == 0 else self.encoded_sum

    def on_sent(self, hop: int) -> None:
        sums = hop - (self.ranks - 1)
        if sums < 0:
            self._sent(hop)
        elif sums == 0:
            self._write(self.encoded_sum, self.rank)
            self._keep_second_encoding()

    def on_message(self, hop: int, message: Tensor) -> None:
        sums = hop - (self.ranks - 1)
        if sums < 0:
            self._received(message, (self.rank - hop - 1) % self.ranks)
        else:
            self._write(message, (self.rank - sums - 1) % self.ranks)

    def _begin_sum(self) -> None:
        """This rank's own shard, to which the others' are added; it is not sent."""
        if self._begun:
            return
        self._begun = True
        low, high = self._own
        undivided = self.work.source.undivided()
        if undivided is not None:
            x, ranks = undivided
            enter_share(x[low:high], ranks, None, self.sum)
            return
        own = self.work.source.range(low, high)
        if self.work.keep == "delivered":
            self.sum.copy_(own)

    def _message(self, at: int) -> Tensor:
        """This rank's elements of another's shard, encoded."""
        self.messages.append(self._encode(self.others[at], self._memory()))
        return self.messages[-1]

    def _memory(self) -> Tensor | None:
        if not self.shards.exact:
            return None
        fits = self.free and self.free[-1].numel() >= self.shards.full
        return self.free.pop()[: int(self.shards.full)] if fits else self.shards.memory()

    def _sent(self, at: int) -> None:
        message = self.messages.pop(0)
        if self._keep is not None:
            with sent_by(self.rank):
                self._keep(self.others[at], message)
        if self.shards.exact:
            self.free.append(message)

    def _received(self, message: Tensor, source: int) -> None:
        self._begin_sum()
        with sent_by(source):
            self._add(self.rank, message)

    def _sum_message(self) -> Tensor:
        """The sum, encoded once: everyone, the owner too, decodes the same bytes."""
        self._begin_sum()
        self.encoded_sum = self._encode_sum(self.rank)
        return self.encoded_sum

    def _write(self, message: Tensor, j: int) -> None:
        with sent_by(j):
            self._put(j, message)
        if self.work.sink is not None:
            self.work.sink.arrived(*self.shards.bounds[j])
        if self.finite:
            self.finite = self.shards.finite(message, j)

    def _keep_second_encoding(self) -> None:
        """Its error is the owner's: sum - total on the owner's shard."""
        low, high = self._own
        if self.work.keep == "delivered":
            error = self.sum.sub_(self.work.total[low:high])
            torch.sub(self.work.source.values[low:high], error, out=self.kept[low:high])
        elif self.work.keep == "remainder":
            torch.sub(self.sum, self.work.total[low:high], out=self.kept[low:high])
