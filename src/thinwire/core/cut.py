"""Numbers cut into a shard for each rank, and the messages of shards."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeAlias

import torch
from torch import Tensor

from thinwire.core.buffers import Buffers
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import Scene, Stage
from thinwire.core.wire import Link, decode_message, encode_message, encode_message_into, message_size, take_off
from thinwire.kernels.quantise import Coder

Encode: TypeAlias = Callable[..., Tensor]  # of a shard's number, and memory
Decode: TypeAlias = Callable[[int, Tensor], None]  # of a shard's number, and its message

SLICE = 1 << 16  # bytes of a part of a message that are worth being one of its own
SLICES = 8  # of a message


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
        self._seen: dict[int, list[Link]] = {}  # by shard
        self._alike: dict[int, Scene] = {}  # by length

    @classmethod
    def of(cls, links: Sequence[Link], numel: int, ranks: int, buffers: Buffers, device: torch.device) -> "Cut":
        stages = tuple(link.stage for link in links)
        return cls(links, *_shards(stages, links[0].scene.spec, numel, ranks), buffers, device)

    def slices(self) -> "list[Cut]":
        """Parts of the shards, equal ones of each, if they are long and their messages say what one would."""
        stage, scene = self.links[0]
        seam = stage.seam(scene.spec) if len(self.links) == 1 else 0
        count = min(int(self.full) // SLICE, SLICES)
        if not seam or count < 2:
            return [self]
        length = -(-self.shards[0][1] // (count * seam)) * seam
        starts = range(0, self.shards[0][1], length)
        return [
            self._narrowed([(min(low + at, high), min(low + at + length, high)) for low, high in self.shards])
            for at in starts
        ]

    def _narrowed(self, shards: list[tuple[int, int]]) -> "Cut":
        low, high = shards[0]
        return Cut(self.links, shards, size_of(self.links, high - low), self.buffers, self.device)

    def memory(self) -> Tensor:
        """Of the length of a message, in chains of fixed size."""
        return self.buffers.empty(int(self.full), torch.uint8, self.device)

    def encoder(self, values: Tensor, origin: int = 0, salt: int = 0, divisor: int = 1) -> Encode:
        """What will make the message of a shard of the values (divided by `divisor`), in memory if that is given.

        The first value is number `origin`. `salt` tells further encodings of the same numbers apart.
        """
        stage, scene = self.links[0]
        whole = scene.moved(base=scene.base + origin, stream=scene.stream + salt, divisor=divisor)
        write = stage.writer(values, whole) if self._prepares else None

        def encode(j: int, memory: Tensor | None = None) -> Tensor:
            low, high = (bound - origin for bound in self.shards[j])
            message = self.memory() if memory is None and self.exact else memory
            if write is None:
                links = [Link(s, x.moved(stream=x.stream + salt, divisor=divisor)) for s, x in self._moved(j)]
                return _encoded(links, values[low:high], message)
            assert message is not None  # sizes are fixed where a stage prepares
            size = self._size(high - low)
            write(low, high, message if size == self.full else message[:size])
            if size < self.full:
                message[size:] = 0
            return message

        return encode

    def decoder(self, out: Tensor, origin: int = 0, add: bool = False) -> Decode:
        """What will write (or add) the message of a shard into `out`, whose first value is number `origin`."""
        stage, scene = self.links[0]
        here = scene.moved(base=scene.base + origin, divisor=1)
        read = stage.reader(here, out, add) if self._prepares else None

        def decode(j: int, message: Tensor) -> None:
            low, high = (bound - origin for bound in self.shards[j])
            decode_message(self._moved(j), message, out[low:high], add)

        return self._reading(read, origin, decode)

    def remover(self, y: Tensor, scratch: Tensor) -> Decode:
        """What will take off y what the message of a shard says; `scratch` is as long as y."""
        stage, scene = self.links[0]
        read = stage.reader(scene.moved(divisor=1), y, add=True, negated=True) if self._prepares else None

        def remove(j: int, message: Tensor) -> None:
            low, high = self.shards[j]
            take_off(self._moved(j), message, y[low:high], scratch[low:high])

        return self._reading(read, 0, remove)

    def _reading(self, read: Coder | None, origin: int, otherwise: Decode) -> Decode:
        def decode(j: int, message: Tensor) -> None:
            low, high = self.shards[j]
            message = self._trimmed(message, high - low)
            if read is None:
                otherwise(j, message)
            else:
                read(low - origin, high - origin, message)

        return decode

    def tells_finite(self, message: Tensor, j: int) -> bool | None:
        """Whether what a message decodes to is finite, if it can be told from its bytes."""
        if len(self.links) > 1:
            return None
        low, high = self.shards[j]
        stage, scene = self.links[0]
        if high - low not in self._alike:
            self._alike[high - low] = scene.moved(spec=_specs((stage,), scene.spec, high - low)[0])
        return stage.tells_finite(self._trimmed(message, high - low), self._alike[high - low])

    @property
    def _prepares(self) -> bool:
        return self.exact and len(self.links) == 1

    def _size(self, numel: int) -> Size:
        """Bytes of a shard's message before it is filled up."""
        low, high = self.shards[0]
        return self.full if numel == high - low else size_of(self.links, numel)

    def _trimmed(self, message: Tensor, numel: int) -> Tensor:
        if not self.exact:
            return message
        size = self._size(numel)
        return message[:size] if size < self.full else message

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


def _encoded(links: Sequence[Link], values: Tensor, message: Tensor | None) -> Tensor:
    if message is None:
        return encode_message(links, values)
    encode_message_into(links, values, message)
    return message


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
