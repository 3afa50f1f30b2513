"""Elements split into a shard for each rank, and the messages of shards."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeAlias

import torch
from torch import Tensor

from thinwire.core.buffers import Buffers
from thinwire.core.context import Context
from thinwire.core.message import (
    Link,
    decode_message,
    encode_message,
    encode_message_into,
    fixed_message,
    message_size,
)
from thinwire.core.profiling import in_span
from thinwire.core.source import Source
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import Stage, WireCoder
from thinwire.kernels.modes import Mode
from thinwire.kernels.quantise import RangeCoder

Encode: TypeAlias = Callable[..., Tensor]  # of a shard's number, and memory
Decode: TypeAlias = Callable[[int, Tensor], None]  # of a shard's number, and its message

SLICE = 1 << 16  # bytes of a part of a message that are worth being one of its own
SLICES = 8  # of a message


def shard_length(coders: Sequence[Stage], spec: Spec, ranks: int) -> int:
    """ceil(n/P) elements, rounded up to a multiple that the first coder wants to keep together."""
    first = coders[0] if coders else None
    multiple = first.shard_multiple(spec) if isinstance(first, WireCoder) else 1
    multiples = -(-spec.numel // multiple)
    return -(-multiples // ranks) * multiple


class Shards:
    """Elements split into a shard for each rank; the last ones may be shorter or empty.

    In chains of fixed size a shorter shard's message is filled up, so that all of one round are equally long.
    """

    def __init__(
        self,
        links: Sequence[Link],
        bounds: Sequence[tuple[int, int]],
        full: Size,
        buffers: Buffers,
        device: torch.device,
    ) -> None:
        """`full`: bytes of the message of the first shard, which no other is longer than."""
        self.links, self.bounds, self.full, self.buffers, self.device = links, bounds, full, buffers, device
        self.exact = full.exact
        self._stages = [link.stage for link in links]
        fixed = fixed_message(links[0].stage, links[0].ctx.spec) if full.exact and len(links) == 1 else None
        self._coder = None if fixed is None else fixed.coder
        self._seen: dict[int, list[Link]] = {}  # by shard
        self._alike: dict[int, Context] = {}  # by length

    @classmethod
    def of(cls, links: Sequence[Link], numel: int, ranks: int, buffers: Buffers, device: torch.device) -> "Shards":
        stages = tuple(link.stage for link in links)
        return cls(links, *_bounds(stages, links[0].ctx.spec, numel, ranks), buffers, device)

    def slices(self) -> "list[Shards]":
        """Parts of the shards, equal ones of each, if they are long and the coder can split its messages."""
        split = self._coder.split if self._coder is not None else 0
        count = min(int(self.full) // SLICE, SLICES)
        if not split or count < 2:
            return [self]
        length = -(-self.bounds[0][1] // (count * split)) * split
        starts = range(0, self.bounds[0][1], length)
        return [
            self._narrowed([(min(low + at, high), min(low + at + length, high)) for low, high in self.bounds])
            for at in starts
        ]

    def _narrowed(self, bounds: list[tuple[int, int]]) -> "Shards":
        low, high = bounds[0]
        return Shards(self.links, bounds, size_of(self.links, high - low), self.buffers, self.device)

    def memory(self) -> Tensor:
        """Of the length of a message, in chains of fixed size."""
        return self.buffers.empty(int(self.full), torch.uint8, self.device)

    def encoder(self, x: Source, origin: int = 0, salt: int = 0) -> Encode:
        """What will make the message of a shard of x, in memory if that is given.

        The first element of x is number `origin`. `salt` separates the draws of further encodings of the same elements.
        """
        ctx = self.links[0].ctx
        whole = ctx.moved(base=ctx.base + origin, stream=ctx.stream + salt) if origin or salt else ctx
        write = self._coder.writer(x, whole) if self._coder is not None else None

        def encode(j: int, memory: Tensor | None = None) -> Tensor:
            low, high = self.bounds[j][0] - origin, self.bounds[j][1] - origin
            message = self.memory() if memory is None and self.exact else memory
            if write is None:
                links = [Link(stage, at.moved(stream=at.stream + salt)) for stage, at in self._links_of(j)]
                return _encoded(links, x.range(low, high), message)
            assert message is not None  # sizes are fixed where there is a message coder
            size = self._size(high - low)
            write(low, high, message if size == self.full else message[:size])
            if size < self.full:
                message[size:] = 0
            return message

        return in_span(encode, "encode", *self._stages)

    def decoder(self, out: Tensor, origin: int = 0, mode: Mode = "write") -> Decode:
        """What will decode the message of a shard into `out`, whose first element is number `origin`."""
        ctx = self.links[0].ctx
        read: RangeCoder | None = None
        if self._coder is not None:
            read = self._coder.reader(ctx.moved(base=ctx.base + origin) if origin else ctx, out, mode)

        def decode(j: int, message: Tensor) -> None:
            low, high = self.bounds[j][0] - origin, self.bounds[j][1] - origin
            message = self._trimmed(message, high - low)
            if read is None:
                decode_message(self._links_of(j), message, out[low:high], mode)
            else:
                read(low, high, message)

        return in_span(decode, "decode", *self._stages)

    def finite(self, message: Tensor, j: int) -> bool | None:
        """Whether what a message decodes to is finite, if its bytes tell, and nobody must wait to read them."""
        if self._coder is None or not message.is_cpu:
            return None
        low, high = self.bounds[j]
        stage, ctx = self.links[0]
        if high - low not in self._alike:
            self._alike[high - low] = ctx.moved(spec=_specs((stage,), ctx.spec, high - low)[0])
        return self._coder.finite(self._trimmed(message, high - low), self._alike[high - low])

    def _size(self, numel: int) -> Size:
        """Bytes of a shard's message before it is filled up."""
        low, high = self.bounds[0]
        return self.full if numel == high - low else size_of(self.links, numel)

    def _trimmed(self, message: Tensor, numel: int) -> Tensor:
        if not self.exact:
            return message
        size = self._size(numel)
        return message[:size] if size < self.full else message

    def _links_of(self, j: int) -> list[Link]:
        """The links as they work on shard j, which is asked for several times."""
        if (links := self._seen.get(j)) is not None:
            return links
        low, high = self.bounds[j]
        specs = _specs(tuple(link.stage for link in self.links), self.links[0].ctx.spec, high - low)
        links = self._seen[j] = [
            Link(stage, ctx.moved(spec=spec, base=ctx.base + low))
            for (stage, ctx), spec in zip(self.links, specs, strict=False)
        ]
        return links


def _encoded(links: Sequence[Link], values: Tensor, message: Tensor | None) -> Tensor:
    if message is None:
        return encode_message(links, values)
    encode_message_into(links, Source(values), message)
    return message


@lru_cache(maxsize=4096)
def _bounds(stages: tuple[Stage, ...], spec: Spec, numel: int, ranks: int) -> tuple[list[tuple[int, int]], Size]:
    """The bounds of all shards, and the bytes of the first one's message."""
    shard = shard_length(stages, replace(spec, numel=numel), ranks)
    bounds = [(min(j * shard, numel), min((j + 1) * shard, numel)) for j in range(ranks)]
    return bounds, message_size(stages, _specs(stages, spec, bounds[0][1])[0])


@lru_cache(maxsize=4096)
def _specs(stages: tuple[Stage, ...], spec: Spec, numel: int) -> tuple[Spec, ...]:
    """What each stage sees of `numel` elements that are like those of `spec`."""
    specs = [replace(spec, numel=numel, shape=())]
    for stage in stages:
        specs.append(stage.out(specs[-1]))
    return tuple(specs)


def size_of(links: Sequence[Link], numel: int) -> Size:
    """Bytes of the message of `numel` elements."""
    stages = tuple(link.stage for link in links)
    return message_size(stages, _specs(stages, links[0].ctx.spec, numel)[0])
