"""A codec: a chain of stages with one cut.

    gradient --[additive stages]--> the space where sums are taken --[wire stages]--> bytes

The longest additive prefix leads into the space where sums are taken; the rest is only how numbers travel.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from thinwire.core.inputs import check_dense, check_floats, check_separate
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import STEADY, Scene, Stage
from thinwire.core.text import parse_links
from thinwire.core.wire import Link, decode_message, encode_message, encode_message_into, message_size
from thinwire.errors import CodecError


@dataclass(frozen=True)
class Codec:
    """An immutable chain of stages; `Codec()` is `none`, which averages uncompressed.

    Args:
        stages: The stages in the order in which they encode. An impossible chain is a `CodecError`.

    Examples:
        >>> codec = thinwire.Codec.parse("topk(density=1/64) | rangefloat(bits=8)")
        >>> codec == thinwire.TopK(density=1 / 64) | thinwire.RangeFloat(bits=8)
        True
        >>> gradient = torch.randn(10_000)
        >>> message = codec.encode(gradient)
        >>> codec.decode(message, numel=gradient.numel()).shape
        torch.Size([10000])
    """

    stages: tuple[Stage, ...] = ()

    def __post_init__(self) -> None:
        check_chain(self.stages)

    @staticmethod
    def parse(text: "str | Codec | Stage") -> "Codec":
        """The chain that a text names: `Codec.parse("pca(ratio=8) | qsgd(bits=4)")`.

        Args:
            text: Stages and presets with their options, joined by `|`. A codec or a stage is taken as it is.
        """
        return text if isinstance(text, Codec) else Codec(_stages_of(text))

    def __or__(self, other: "Stage | Codec | str") -> "Codec":
        return Codec(self.stages + _stages_of(other))

    def __ror__(self, other: "Stage | str") -> "Codec":
        return Codec(_stages_of(other) + self.stages)

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        return " | ".join(str(stage) for stage in self.stages) or "none"

    def __repr__(self) -> str:
        return f"Codec({str(self)!r})"

    # The cut.

    @cached_property
    def working(self) -> tuple[int, ...]:
        """Positions of the stages that touch data."""
        return tuple(i for i, stage in enumerate(self.stages) if not stage.settings)

    @cached_property
    def prefix(self) -> tuple[int, ...]:
        """Positions of the additive stages, which lead into the space where sums are taken."""
        return tuple(takewhile(lambda i: self.stages[i].additive, self.working))

    @cached_property
    def tail(self) -> tuple[int, ...]:
        """Positions of the wire stages, which say how numbers travel."""
        return self.working[len(self.prefix) :]

    @cached_property
    def wire(self) -> tuple[Stage, ...]:
        return tuple(self.stages[i] for i in self.tail)

    @property
    def additive(self) -> bool:
        """Sums can be taken on what this chain sends, by the backend's own all-reduce."""
        return not self.tail

    @property
    def unbiased(self) -> bool:
        """The average comes out right in expectation."""
        return all(self.stages[i].unbiased for i in self.working)

    @cached_property
    def feedback(self) -> str:
        """How error feedback keeps its residual: fp32, bf16 or off (see the `feedback` stage)."""
        kept = self._setting("keep", None)
        if kept is not None:
            return str(kept)
        return "fp32" if any(self.stages[i].feeds for i in self.working) else "off"

    @property
    def beta(self) -> float:
        """The share of a new residual that is kept (1: all of it)."""
        return float(self._setting("beta", 1.0))

    @property
    def delay(self) -> int:
        """Steps that travel uncompressed before the chain begins (see the `delay` stage)."""
        return int(self._setting("steps", 0))

    def _setting(self, option: str, default: Any) -> Any:
        """An option of a settings stage at the head of the chain."""
        for stage in self.stages:
            if stage.settings and option in (options := stage.options()):
                return options[option]
        return default

    # Sizes.

    @lru_cache(maxsize=4096)  # noqa: B019 (codecs are small, and equal ones share their entries)
    def specs(self, spec: Spec) -> tuple[Spec, ...]:
        """What each stage sees, and last what leaves the chain."""
        specs = [spec]
        for stage in self.stages:
            spec = spec if stage.settings else stage.out(spec)
            specs.append(spec)
        return tuple(specs)

    def sum_spec(self, spec: Spec) -> Spec:
        """The numbers of the space where sums are taken."""
        for i in self.prefix:
            spec = self.stages[i].out(spec)
        return spec

    def declined(self, spec: Spec) -> str | None:
        """Which stage always leaves a tensor of this spec as it is, why, and how it travels instead; None: no stage."""
        for i in self.prefix:
            stage = self.stages[i]
            reason = stage.declines(spec)
            if reason is not None:
                instead = stage.detour()
                return f"{stage}: {reason}, travels {'as it is' if instead is None else f'through {instead}'}"
            spec = stage.out(spec)
        return None

    def compresses(self, spec: Spec) -> bool:
        """Whether a tensor of this spec travels in fewer bytes once the chain has started up."""
        sent = spec
        for i in self.working:
            stage = self.stages[i]
            if stage.declines(sent) is not None:
                instead = stage.detour()
                return instead is not None and instead.compresses(Spec(sent.numel))
            sent = stage.out(sent)
        return not sent.exact or sent.payload() < spec.payload()

    def holds_behind(self, spec: Spec) -> bool:
        """Whether a residual is kept in the space where sums are taken, which saves its way back and in again.

        Every stage on that way must be a fixed orthonormal map that neither adds nor takes away numbers.
        """
        there = bool(self.prefix and self.tail) and all(self.stages[i].orthonormal for i in self.prefix)
        asked = any(self.stages[i].settles or not self.stages[i].takes_as_given for i in self.working)
        return there and not asked and self.beta == 1.0 and self.sum_spec(spec).numel == spec.numel

    def wire_bytes(self, numel: "int | Sequence[int]", world_size: int, reduction: str | None = None) -> Size:
        """Bytes that a rank sends to average one tensor, once the chain has started up.

        In DDP, a short tensor takes the reduction of the long ones that it shares collectives with.

        Args:
            numel: The number of elements, or the shape.
            world_size: The number of ranks.
            reduction: `"summed"`, `"sharded"`, `"gathered"` or `"ring"`; None takes the cheapest.

        Returns:
            The size; `.exact` is False where it is an expectation.
        """
        from thinwire.core.parts import question_bytes
        from thinwire.core.reduce import choose_reduction, reduction_bytes

        spec = Spec.of((numel,) if isinstance(numel, int) else tuple(numel))
        total, piece, asks = Size(0), None, False
        for i in self.prefix:
            stage = self.stages[i]
            if not stage.ready(STEADY, spec):
                return total.plus((stage.detour() or Codec()).wire_bytes(spec.numel, world_size))
            total = total.plus(stage.agreement(spec, world_size))
            piece, asks = stage.piece(spec) if stage.parted else None, stage.asks
            spec = stage.out(spec)
        for stage in self.wire:
            total = total.plus(stage.agreement(spec, world_size))
        kind = choose_reduction(self.wire, spec, world_size, reduction)
        if kind == "summed" and piece and asks:
            total = total.plus(question_bytes(spec.numel // piece, piece, world_size))
        return total.plus(reduction_bytes(kind, self.wire, spec, world_size, piece))

    # One message, for any other transport.

    def encode(
        self, tensor: Tensor, *, out: Tensor | None = None, seed: int = 0, step: int = 0, rank: int = 0
    ) -> Tensor:
        """The tensor as one self-contained message (uint8); for chains whose stages need no agreement.

        Args:
            tensor: What to encode.
            out: Memory for a message of fixed size, so that it can be reused.
            seed: Seed of random rounding.
            step: The step, so that every step rounds differently.
            rank: The rank, so that every rank rounds differently.
        """
        self._require_self_contained()
        check_floats("the tensor", tensor)
        x = tensor.detach().reshape(-1).to(torch.float32).contiguous()
        links = self._links(x.numel(), seed, step, rank)
        if out is None:
            return encode_message(links, x)
        self._check_message(out, x.numel())
        encode_message_into(links, x, out)
        return out

    def message_bytes(self, numel: int) -> Size:
        """Bytes of a self-contained message of `numel` numbers; `.exact` is False where it is an expectation."""
        self._require_self_contained()
        return message_size(tuple(self.stages[i] for i in self.working), Spec(numel))

    def _check_message(self, out: Tensor, numel: int) -> None:
        check_dense("out", out)
        size = self.message_bytes(numel)
        if not size.exact:
            raise CodecError(f"messages of {self} vary in size; leave `out` away.")
        if out.dtype != torch.uint8 or out.shape != (int(size),) or not out.is_contiguous():
            raise CodecError(
                f"{numel} numbers through {self} are a flat uint8 tensor of {int(size)} bytes;"
                f" got {out.dtype} of shape {tuple(out.shape)}."
            )

    def decode(self, message: Tensor, numel: int, *, out: Tensor | None = None, add: bool = False) -> Tensor:
        """The elements of a message; malformed bytes raise `WireError`.

        Args:
            message: What `encode` gave.
            numel: The number of elements that were encoded.
            out: A tensor for the result; None makes one.
            add: Add to `out` instead of overwriting it.
        """
        self._require_self_contained()
        _check_buffers(message, numel, out)
        if out is None:
            out = torch.zeros(numel, device=message.device) if add else torch.empty(numel, device=message.device)
        decode_message(self._links(numel), message, out, add)
        return out

    def _links(self, numel: int, seed: int = 0, step: int = 0, rank: int = 0) -> list[Link]:
        links, spec = [], Spec(numel)
        for i in self.working:
            state = self.stages[i].init(spec)
            links.append(Link(self.stages[i], Scene(spec, state, rank=rank, seed=seed, step=step, stream=i)))
            spec = self.stages[i].out(spec)
        return links

    @property
    def self_contained(self) -> bool:
        """Whether one message says all that its reader needs, without agreement between ranks."""
        return all(self.stages[i].standalone and not self.stages[i].rounds for i in self.working)

    def _require_self_contained(self) -> None:
        for i in self.working:
            if self.stages[i].rounds or not self.stages[i].standalone:
                raise CodecError(
                    f"{self.stages[i]} needs the ranks to agree first, so it makes no message of its own;"
                    " use simulate() or average()."
                )


def _stages_of(what: "str | Codec | Stage") -> tuple[Stage, ...]:
    """The stages of a chain or of a part of one, which need not be able to stand alone."""
    if isinstance(what, Codec):
        return what.stages
    if isinstance(what, Stage):
        return (what,)
    if not isinstance(what, str):
        raise CodecError(
            f"a codec is a text, a stage or a Codec; got {type(what).__name__}"
            f"{'; write none for no compression' if what is None else ''}."
        )
    return tuple(stage for link in parse_links(what) for stage in _stages_of(link))


def _check_buffers(message: Tensor, numel: int, out: Tensor | None) -> None:
    check_dense("a message", message)
    if message.dtype != torch.uint8 or message.dim() != 1:
        raise CodecError(f"a message is a flat uint8 tensor; got {message.dtype} of shape {tuple(message.shape)}.")
    if numel < 0:
        raise CodecError(f"numel must be at least 0; got {numel}.")
    if out is None:
        return
    check_dense("out", out)
    if out.numel() != numel or out.dtype != torch.float32 or out.dim() != 1:
        raise CodecError(
            f"out must be a flat float32 tensor of {numel} numbers; got {out.dtype} of shape {tuple(out.shape)}."
        )
    check_separate("out", out)


def check_chain(stages: tuple[Stage, ...]) -> None:
    """Refuse a chain that cannot work, naming both stages and the way out."""
    spec, before, cut = Spec.of((1 << 15, 1 << 15)), None, None
    for at, stage in enumerate(stages):
        if not isinstance(stage, Stage):
            raise CodecError(f"a chain is made of stages; got {type(stage).__name__}.")
        if stage.settings:
            if any(not earlier.settings for earlier in stages[:at]):
                raise CodecError(
                    f"{stage.name} sets how the whole chain works and must come first; got it behind {stages[0].name}."
                )
            continue
        if cut is not None and not stage.wire:
            raise CodecError(
                f"{cut.name} cannot come before {stage.name}: what it sends cannot be summed;"
                f" write {stage.name} | {cut.name}."
            )
        if before is None and spec.kind not in stage.accepts:
            takes = " or ".join(sorted(stage.accepts))
            raise CodecError(f"{stage.name} cannot be the first stage: it takes {takes}; put a quantiser before it.")
        if before is not None and spec.kind not in stage.accepts:
            raise CodecError(_misfit(before, stage, spec))
        if before is not None and not spec.shape and (reason := stage.declines(spec)) is not None:
            raise CodecError(
                f"{stage.name} cannot follow {before.name}, which gives a flat run of numbers ({reason});"
                f" write {stage.name} | {before.name}, or leave one of the two out."
            )
        if cut is None and not stage.additive:
            cut = stage
        spec, before = stage.out(spec), stage
    if before is not None and cut is None and spec.kind not in ("float32", "float16", "bfloat16", "int32"):
        raise CodecError(f"{before.name} leaves {spec.describe()}, which no all-reduce can sum.")


def _misfit(before: Stage, stage: Stage, spec: Spec) -> str:
    return (
        f"{stage.name} cannot follow {before.name}: it takes {' or '.join(sorted(stage.accepts))},"
        f" and {before.name} gives {spec.describe()}; leave one of the two out or change their order."
    )
