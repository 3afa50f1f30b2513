"""Messages: the wire part of a chain turned into bytes and back.

A message is the side bytes of each stage in order, then the payload of the last. Parts of fixed size carry
no header; a side part of variable size says its length first (4 bytes, little endian); the payload takes
the rest. Every part is checked before it is used.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from thinwire.core.context import STEADY, Context, empty_like_spec
from thinwire.core.fast import MessageCoder
from thinwire.core.ops import LENGTH_BYTES, Rounds
from thinwire.core.source import Source
from thinwire.core.spec import DTYPES, Size, Spec
from thinwire.core.stage import Encoded, Stage, WireCoder, fast_path, shares_context
from thinwire.errors import WireError
from thinwire.kernels import packing
from thinwire.kernels.modes import Mode, put

SAMPLE = 1 << 16  # elements on which the size of a variable message is measured
LARGE_SAMPLE = 1 << 22  # the same for messages whose size is not proportional to their length
_LINEAR = 0.05  # how far from proportional a size may be


class Link(NamedTuple):
    """A stage of a chain together with the ctx it works in."""

    stage: Stage
    ctx: Context


def side_of(stage: Stage, spec: Spec) -> Size:
    """Bytes of a stage's side information; a transform among the coders has none."""
    return stage.side(spec) if isinstance(stage, WireCoder) else Size(0)


def _received(stage: Stage, side: Tensor | None, spec: Spec) -> Spec:
    return stage.received(side, spec) if isinstance(stage, WireCoder) else stage.out(spec)


@lru_cache(maxsize=4096)
def message_size(stages: tuple[Stage, ...], spec: Spec) -> Size:
    """Bytes of the message for `spec`: exact where the chain's sizes are fixed, else measured on Gaussian elements."""
    total, first = Size(0), spec
    for stage in stages:
        total, spec = total.plus(side_of(stage, spec)), stage.out(spec)
    total = total.plus(spec.payload())
    return total if total.exact else _measured_size(stages, first)


def _measured_size(stages: tuple[Stage, ...], spec: Spec) -> Size:
    """The expectation for Gaussian elements: the size of one message of at most SAMPLE of them, scaled up.

    Where half as many elements do not take half the bytes (one L2 norm for all of them), a larger message is measured,
    and what is longer still follows the power of the length that its two halves show.
    """
    if spec.numel <= SAMPLE:
        return Size(_sampled_size(stages, spec, spec.numel), exact=False)
    half, full = (_sampled_size(stages, spec, numel) for numel in (SAMPLE // 2, SAMPLE))
    if abs(2 * half - full) <= _LINEAR * full:
        return Size(full * spec.numel / SAMPLE, exact=False)
    numel = min(spec.numel, LARGE_SAMPLE)
    full = _sampled_size(stages, spec, numel)
    if numel == spec.numel:
        return Size(full, exact=False)
    power = math.log2(full / _sampled_size(stages, spec, numel // 2))
    return Size(full * (spec.numel / numel) ** power, exact=False)


def _sampled_size(stages: tuple[Stage, ...], spec: Spec, numel: int) -> int:
    """Bytes of a message of so many Gaussian elements."""
    spec = replace(spec, numel=numel, shape=())
    x, links = torch.randn(numel, generator=torch.Generator().manual_seed(0)).to(DTYPES[spec.kind]), []
    for at, stage in enumerate(stages):
        links.append(Link(stage, Context(spec, stage.init(spec) | STEADY, stream=at)))
        spec = stage.out(spec)
    return encode_message(links, x).numel()


def agree_on_wire(links: Sequence[Link], y: Source) -> Rounds[None]:
    """Let wire coders agree on what their ranks must share (levels, ranges), on the elements that reach them."""
    for at, link in enumerate(links):
        if shares_context(link.stage):
            x = y
            for earlier in links[:at]:
                x = Source(earlier.stage.encode(x.tensor(), earlier.ctx).values)
            link.ctx.shared = yield from link.stage.agree(x, link.ctx)


class FixedMessage(NamedTuple):
    """A message of one stage that always has the same size, and what writes and reads it fast, if anything does."""

    size: int
    coder: MessageCoder | None


@lru_cache(maxsize=4096)
def fixed_message(stage: Stage, spec: Spec) -> FixedMessage | None:
    """The message for these elements; None: its size varies. Every message asks."""
    size = side_of(stage, spec).plus(stage.out(spec).payload())
    fast = fast_path(stage, spec)
    return FixedMessage(int(size), fast if isinstance(fast, MessageCoder) else None) if size.exact else None


def encode_message(links: Sequence[Link], x: Tensor) -> Tensor:
    """One self-contained message for the elements x."""
    parts: list[Tensor] = []
    spec = links[0].ctx.spec if links else Spec(x.numel())
    for at, link in enumerate(links):
        ctx = link.ctx if spec is link.ctx.spec else link.ctx.moved(spec=spec)
        if at == len(links) - 1 and (message := _encode_fast(Link(link.stage, ctx), x)) is not None:
            return torch.cat([*parts, message]) if parts else message
        x, side = link.stage.encode(x, ctx)
        if side is not None:
            parts += [side] if side_of(link.stage, spec).exact else [_length_bytes(side), side]
        spec = _received(link.stage, side, spec)
    parts.append(to_bytes(x, spec))
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def encode_message_into(links: Sequence[Link], x: Source, message: Tensor) -> None:
    """The same in memory of the message's exact size or more; what is left of it becomes zero."""
    fixed = fixed_message(links[0].stage, links[0].ctx.spec) if len(links) == 1 else None
    if fixed is not None and fixed.coder is not None:
        size = fixed.size
        fixed.coder.writer(x, links[0].ctx)(0, x.numel, message[:size])
    else:
        encoded = encode_message(links, x.tensor())
        size = encoded.numel()
        message[:size] = encoded
    if size < message.numel():
        message[size:] = 0


def _encode_fast(link: Link, x: Tensor) -> Tensor | None:
    fixed = fixed_message(link.stage, link.ctx.spec)
    if fixed is None or fixed.coder is None:
        return None
    message = torch.empty(fixed.size, dtype=torch.uint8, device=x.device)
    fixed.coder.writer(Source(x), link.ctx)(0, x.numel(), message)
    return message


def decode_message(links: Sequence[Link], message: Tensor, out: Tensor, mode: Mode = "write") -> None:
    """Decode a message into `out`; anything malformed is a WireError and leaves no crash."""
    if len(links) == 1 and _decode_fast(*links[0], message, out, mode) is not None:
        return
    spec = links[0].ctx.spec if links else Spec(out.numel())
    open_links: list[tuple[Link, Context, Tensor | None]] = []
    values, at = None, 0
    for position, link in enumerate(links):
        ctx = link.ctx if spec is link.ctx.spec else link.ctx.moved(spec=spec)
        if position == len(links) - 1 and open_links:
            values = _decode_fast(link.stage, ctx, message[at:])
            if values is not None:
                break
        side, at = _take_side(link.stage, spec, message, at)
        open_links.append((link, ctx, side))
        spec = _received(link.stage, side, spec)
    if values is None:
        values = from_bytes(message[at:], spec)
    for position in range(len(open_links) - 1, -1, -1):
        link, ctx, side = open_links[position]
        last = position == 0
        target = out if last else empty_like_spec(ctx.spec, ctx.buffers, out.device)
        link.stage.decode(Encoded(values, side), ctx, target, mode if last else "write")
        values = target
    if not links:
        put(values, out, mode)


def _decode_fast(
    stage: Stage, ctx: Context, message: Tensor, out: Tensor | None = None, mode: Mode = "write"
) -> Tensor | None:
    """The last stage's elements straight from side and payload, in `out` or in work memory; None: not so."""
    fixed = fixed_message(stage, ctx.spec)
    if fixed is None:
        return None
    if message.numel() != fixed.size:
        raise WireError(
            f"a {stage} message for {ctx.spec.numel} numbers has {fixed.size} bytes; got {message.numel()}."
        )
    if fixed.coder is None:
        return None
    into = empty_like_spec(ctx.spec, ctx.buffers, message.device) if out is None else out
    fixed.coder.reader(ctx, into, mode)(0, into.numel(), message)
    return into


def _take_side(stage: Stage, spec: Spec, message: Tensor, at: int) -> tuple[Tensor | None, int]:
    """The next stage's side bytes and the position behind them."""
    size = side_of(stage, spec)
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
    """The elements of a payload; its length must fit."""
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
