"""Messages: the wire part of a chain turned into bytes and back.

A message is the side bytes of each stage in order, then the payload of the last. Parts of fixed size carry
no header; a side part of variable size says its length first (4 bytes, little endian); the payload takes
the rest. Every part is checked before it is used.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from thinwire.core.ops import LENGTH_BYTES, Rounds
from thinwire.core.spec import DTYPES, Size, Spec
from thinwire.core.stage import STEADY, Encoded, Scene, Stage, empty_like_spec
from thinwire.errors import WireError
from thinwire.kernels import packing

if TYPE_CHECKING:
    from thinwire.core.codec import Codec

SAMPLE = 1 << 16  # numbers on which the size of a variable message is measured


class Link(NamedTuple):
    """A stage of the wire part together with the scene it works in."""

    stage: Stage
    scene: Scene

    @staticmethod
    def chain(codec: "Codec", positions: Sequence[int], scenes: Sequence[Scene]) -> "list[Link]":
        return [Link(codec.stages[i], scenes[i]) for i in positions]


@lru_cache(maxsize=4096)
def message_size(stages: tuple[Stage, ...], spec: Spec) -> Size:
    """Bytes of the message for `spec`: exact where the chain's sizes are fixed, else measured on Gaussian numbers."""
    total, first = Size(0), spec
    for stage in stages:
        total, spec = total.plus(stage.side(spec)), stage.out(spec)
    total = total.plus(spec.payload())
    return total if total.exact else _measured_size(stages, first)


def _measured_size(stages: tuple[Stage, ...], spec: Spec) -> Size:
    """The expectation for Gaussian numbers: the size of one message of at most SAMPLE of them, scaled up."""
    numel = min(spec.numel, SAMPLE)
    spec, scale = replace(spec, numel=numel, shape=()), spec.numel / max(numel, 1)
    x, links = torch.randn(numel, generator=torch.Generator().manual_seed(0)).to(DTYPES[spec.kind]), []
    for at, stage in enumerate(stages):
        links.append(Link(stage, Scene(spec, stage.init(spec) | STEADY, stream=at)))
        spec = stage.out(spec)
    return Size(encode_message(links, x).numel() * scale, exact=False)


def agree_on_wire(links: Sequence[Link], y: Tensor) -> Rounds[None]:
    """Let wire stages agree on what their ranks must share (levels, ranges), on the numbers that reach them."""
    for at, link in enumerate(links):
        if link.stage.rounds:
            x = y
            for earlier in links[:at]:
                x = earlier.stage.encode(x, earlier.scene).values
            link.scene.context = yield from link.stage.agree(x, link.scene)


@lru_cache(maxsize=4096)
def fixed_size(stage: Stage, spec: Spec) -> Size | None:
    """Bytes of one stage's side and payload, if they are fixed."""
    size = stage.side(spec).plus(stage.out(spec).payload())
    return size if size.exact else None


def encode_message(links: Sequence[Link], x: Tensor) -> Tensor:
    """One self-contained message for the numbers x."""
    parts: list[Tensor] = []
    spec = links[0].scene.spec if links else Spec(x.numel())
    for at, link in enumerate(links):
        scene = link.scene if spec is link.scene.spec else link.scene.moved(spec=spec)
        if at == len(links) - 1 and (message := _encode_fast(link.stage, scene, x)) is not None:
            return torch.cat([*parts, message]) if parts else message
        x, side = link.stage.encode(x, scene)
        if side is not None:
            parts += [side] if link.stage.side(spec).exact else [_length_bytes(side), side]
        spec = link.stage.received(side, spec)
    parts.append(to_bytes(x, spec))
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def encode_message_into(links: Sequence[Link], x: Tensor, message: Tensor) -> None:
    """The same in memory of the message's exact size or more; what is left of it becomes zero."""
    size = fixed_size(links[0].stage, links[0].scene.spec) if len(links) == 1 else None
    exact = message if size == message.numel() else message[:size]
    if size is None or not links[0].stage.encode_into(x, links[0].scene, exact):
        encoded = encode_message(links, x)
        size = Size(encoded.numel())
        message[:size] = encoded
    if size < message.numel():
        message[size:] = 0


def _encode_fast(stage: Stage, scene: Scene, x: Tensor) -> Tensor | None:
    size = fixed_size(stage, scene.spec)
    if size is None:
        return None
    message = torch.empty(int(size), dtype=torch.uint8, device=x.device)
    return message if stage.encode_into(x, scene, message) else None


def take_off(links: Sequence[Link], message: Tensor, y: Tensor, scratch: Tensor) -> None:
    """y less what a message says: of sparse messages only where they say something; `scratch` is as long as y."""
    stage, scene = links[-1]
    if links[0].stage.sparse:
        decode_message(links, message, y, add=True, negated=True)
    elif len(links) > 1 or not stage.take_off(message, scene, y):
        decode_message(links, message, scratch)
        y.sub_(scratch)


def decode_message(
    links: Sequence[Link], message: Tensor, out: Tensor, add: bool = False, negated: bool = False
) -> None:
    """Write (or add) what a message says into `out`; anything malformed is a WireError and leaves no crash.

    `negated`: the other way round; the first stage is sparse.
    """
    if len(links) == 1 and not negated and _decode_fast(*links[0], message, out, add) is not None:
        return
    spec = links[0].scene.spec if links else Spec(out.numel())
    open_links: list[tuple[Link, Scene, Tensor | None]] = []
    values, at = None, 0
    for position, link in enumerate(links):
        scene = link.scene if spec is link.scene.spec else link.scene.moved(spec=spec)
        if position == len(links) - 1 and open_links:
            values = _decode_fast(link.stage, scene, message[at:], None, add)
            if values is not None:
                break
        side, at = _take_side(link.stage, spec, message, at)
        open_links.append((link, scene, side))
        spec = link.stage.received(side, spec)
    if values is None:
        values = from_bytes(message[at:], spec)
    for position in range(len(open_links) - 1, -1, -1):
        link, scene, side = open_links[position]
        last = position == 0
        if last and negated:
            values = values.neg()
        target = out if last else empty_like_spec(scene.spec, scene.buffers, out.device)
        link.stage.decode(Encoded(values, side), scene, target, add and last)
        values = target
    if not links:
        out.add_(values) if add else out.copy_(values)


def _decode_fast(stage: Stage, scene: Scene, message: Tensor, out: Tensor | None, add: bool) -> Tensor | None:
    """The last stage's numbers straight from side and payload, in `out` or else in work memory; None: not so."""
    size = fixed_size(stage, scene.spec)
    if size is None:
        return None
    if message.numel() != size:
        raise WireError(f"a {stage} message for {scene.spec.numel} numbers has {size} bytes; got {message.numel()}.")
    into = empty_like_spec(scene.spec, scene.buffers, message.device) if out is None else out
    return into if stage.decode_from(message, scene, into, add and out is not None) else None


def _take_side(stage: Stage, spec: Spec, message: Tensor, at: int) -> tuple[Tensor | None, int]:
    """The next stage's side bytes and the position behind them."""
    size = stage.side(spec)
    length = int(size)
    if not size.exact:
        length, at = _read_length(message, at), at + LENGTH_BYTES
    if at + length > message.numel():
        raise WireError(f"the message ends inside {stage}'s side data: {length} bytes at {at} of {message.numel()}.")
    return (message[at : at + length] if length or not size.exact else None), at + length


def _length_bytes(part: Tensor) -> Tensor:
    length = torch.tensor([part.numel()], dtype=torch.int32)
    return length.view(torch.uint8).to(part.device)


def _read_length(message: Tensor, at: int) -> int:
    if at + LENGTH_BYTES > message.numel():
        raise WireError(f"the message ends inside a length: {message.numel()} bytes.")
    length = int.from_bytes(bytes(message[at : at + LENGTH_BYTES].tolist()), "little")
    if length > message.numel():
        raise WireError(f"a part of {length} bytes cannot lie in a message of {message.numel()}.")
    return length


def to_bytes(values: Tensor, spec: Spec) -> Tensor:
    """The payload of the last stage as bytes."""
    if spec.kind == "symbols":
        return packing.pack(values, spec.bits)
    return values.contiguous().view(torch.uint8)


def from_bytes(payload: Tensor, spec: Spec) -> Tensor:
    """The numbers of a payload; its length must fit."""
    if spec.kind == "symbols":
        return packing.unpack(payload, spec.numel, spec.bits)
    width = spec.bits // 8
    if spec.exact and payload.numel() != spec.numel * width:
        raise WireError(
            f"{spec.numel} {spec.describe()} take {spec.numel * width} bytes; the message has {payload.numel()}."
        )
    if spec.kind == "bytes":
        return payload
    if payload.storage_offset() % width:
        payload = payload.clone()  # a view of another type must start at a multiple of its width
    return payload.view(DTYPES[spec.kind])
