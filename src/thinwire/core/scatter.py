"""One tensor's reduce-scatter: every rank gives one row to each rank, and gets the mean of the rows that are for it.

A row is a tensor of its own, with a slot of its own. Also the one that stays is encoded and decoded, so that what every
rank gives to a mean is treated alike. Only the owner gets a mean: nothing is encoded twice, and no state can depend on
a mean.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from thinwire.core.codec import Codec
from thinwire.core.message import message_size
from thinwire.core.ops import Hop, PipelinedExchange, Rounds, Traffic, longest_message, sent_by
from thinwire.core.reducers.work import Reduced
from thinwire.core.route import StepInfo
from thinwire.core.shards import Shards
from thinwire.core.slot import Slot
from thinwire.core.source import Source
from thinwire.core.spec import Spec
from thinwire.core.stage import DecidingStage, InputStage, Stage, WireCoder, shares_context
from thinwire.core.step import Step
from thinwire.errors import WireError
from thinwire.kernels.modes import Mode, put
from thinwire.kernels.shares import all_finite


def misfit(codec: Codec, spec: Spec) -> str | None:
    """Why a chain cannot work in a reduce-scatter; None: it can."""
    for stage, seen in zip(codec.stages, codec.specs(spec), strict=False):
        entering: Any = stage if isinstance(stage, InputStage) else None
        looks = type(stage).observe is not Stage.observe
        if isinstance(stage, DecidingStage) and not stage.init(seen):
            looks = False  # it was not asked to decide anything
        if shares_context(stage):
            return f"all ranks of {stage.name} must agree on something that a rank cannot use alone"
        if isinstance(stage, WireCoder) and stage.preferred_reduction is not None:
            return f"{stage.name} gets its meaning from sums that are encoded again"
        if (entering is not None and entering.keeps_losses) or (looks and entering is None):
            return f"{stage.name} learns from the mean, which only one rank gets"
        if set(stage.init(seen)) - set(entering.rank_local if entering is not None else ()):
            return f"{stage.name} keeps a state that all ranks share"
    return None


def reduce_scatter(
    codec: Codec, rows: Sequence[Tensor], slots: Sequence[Slot], infos: Sequence[StepInfo]
) -> Rounds[Tensor]:
    """The mean of what all ranks have in the row of this one, flat, in fp32.

    `rows`: what this rank gives to each rank, in tensors of equal shape that may be overwritten; each has its slot, and
    its own random draws.
    """
    info = infos[0]
    row = [_Row(codec, slot, info, x) for x, slot, info in zip(rows, slots, infos, strict=True)]
    exchange = _Exchange(row, info.rank)
    yield PipelinedExchange(exchange.hops, [exchange], rows[0].device)
    return exchange.mean()


class _Row(Step):
    """What this rank gives to the sum of one rank."""

    def __init__(self, codec: Codec, slot: Slot, info: StepInfo, row: Tensor) -> None:
        slot.open(codec, tuple(row.shape))
        super().__init__(codec, slot, info, None, row)
        x = self.enter(row)
        for link in self.transforms:
            x = self.encode(link, x)
        self.x = self.add_residual_in_sum_space(x)
        numel, device = self.x.numel, row.device
        self.shards: Shards | None = None
        if self.coders:
            size = message_size(tuple(link.stage for link in self.coders), self.coders[0].ctx.spec)
            self.shards = Shards(self.coders, [(0, numel)], size, info.buffers, device)

    @property
    def size(self) -> int | None:
        """Bytes of the message, if all ranks know them."""
        if self.shards is None:
            return self.x.values.nbytes
        return int(self.shards.full) if self.shards.exact else None

    def message(self) -> Tensor:
        if self.shards is None:
            return self.x.tensor().contiguous().view(torch.uint8)
        return self.shards.encoder(self.x)(0)

    def read(self, message: Tensor, out: Tensor, mode: Mode) -> None:
        """Decode a message: its wire coders, or all of it where there are none."""
        if self.shards is not None:
            self.shards.decoder(out, mode=mode)(0, message)
        else:
            if message.numel() != self.x.values.nbytes:
                raise WireError(f"the message has {message.numel()} bytes instead of {self.x.values.nbytes}.")
            aligned = message if message.storage_offset() % self.x.values.element_size() == 0 else message.clone()
            put(self._back(self.transforms, aligned.view(self.x.values.dtype), 1, None), out, mode)

    def sent(self, message: Tensor) -> None:
        """Keep what the message does not deliver."""
        if not (self.codec.stages or self.had_residual):
            return
        kept = self._kept(message)
        finite = self.shards.finite(message, 0) if self.shards is not None else None
        if finite is None:
            finite = all_finite(self.x.values if kept is None else kept)
        # all that is sent arrives: no owner encodes its sum again
        self.finish(self.x, Reduced(self.x.values, kept, finite), torch.ones(1, device=message.device))
        if not finite:
            self.slot.steps += 1  # other rows may be finite, and all ranks count alike

    def _kept(self, message: Tensor) -> Tensor | None:
        if self.route.keep == "nothing":
            return None
        if self.shards is None:  # nothing is lost on the way
            return self.x.values if self.route.keep == "delivered" else self.x.values.zero_()
        if self.route.keep == "remainder":
            self.read(message, self.x.values, "subtract")
            return self.x.values
        delivered = self.info.empty(self.x.values)
        self.read(message, delivered, "write")
        return delivered

    def mean(self, total: Tensor) -> Tensor:
        """What a sum of messages decodes to."""
        return total if self.shards is None else self._back(self.transforms, total, self.info.ranks, None)

    def _is_finite(self, x: Source, reduced: Reduced, mean: Tensor) -> bool:
        return bool(reduced.finite)


class _Exchange:
    """The messages of a tensor's rows, and the sum of those for this rank."""

    def __init__(self, rows: Sequence[_Row], rank: int) -> None:
        ranks = len(rows)
        self.rows, self.own = rows, rows[rank]
        self.others = [((rank + distance) % ranks, (rank - distance) % ranks) for distance in range(1, ranks)]
        self.hops = tuple(Hop(to, source) for to, source in self.others)
        self.size, numel = self.own.size, self.own.x.numel
        self.expected_size = 4 * numel if self.size is None else self.size
        self.longest = longest_message(numel)
        self.traffic = Traffic()
        self._messages: list[Tensor] = []  # made, and not sent yet
        self._total: Tensor | None = None

    def prepare(self, hop: int) -> bool:
        row = self.rows[self.others[hop][0]]
        return row.x.prepare(0, row.x.numel)

    def next_message(self, hop: int) -> Tensor:
        self._messages.append(self.rows[self.others[hop][0]].message())
        return self._messages[-1]

    def on_sent(self, hop: int) -> None:
        self.rows[self.others[hop][0]].sent(self._messages.pop(0))

    def on_message(self, hop: int, message: Tensor) -> None:
        with sent_by(self.others[hop][1]):
            self.own.read(message, self._sum(), "add")

    def _sum(self) -> Tensor:
        """The sum so far; it begins with what this rank gives itself."""
        if self._total is None:
            message, own = self.own.message(), self.own
            numel = own.flat.numel() if own.shards is None else own.x.numel
            self._total = torch.zeros(numel, dtype=torch.float32, device=message.device)
            own.read(message, self._total, "add")
            own.sent(message)
        return self._total

    def mean(self) -> Tensor:
        return self.own.mean(self._sum())
