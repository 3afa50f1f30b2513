"""A codec: a chain of stages with one cut, and settings before them.

    gradient --[transforms]--> the space where sums are taken --[wire coders]--> bytes

The longest prefix of transforms leads into the space where sums are taken; the rest is only how elements travel.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from thinwire.core.context import STEADY, Context
from thinwire.core.inputs import check_dense, check_floats, check_message
from thinwire.core.message import Link, decode_message, encode_message, encode_message_into, message_size
from thinwire.core.reducers import chain_bytes
from thinwire.core.rules import check_chain, check_feedback, loss_keeper
from thinwire.core.settings import Delay, Feedback, Setting
from thinwire.core.source import Source
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import COMPOSER, DeliveryStage, InputStage, Stage, Transform, shares_context
from thinwire.core.text import parse_links
from thinwire.errors import CodecError


@dataclass(frozen=True)
class Codec:
    """An immutable chain of stages; `Codec()` is `none`, which averages uncompressed.

    Args:
        stages: The stages in the order in which they encode. An impossible chain is a `CodecError`.
        settings: Settings of the whole chain: `Feedback`, `Delay`.

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
    settings: tuple[Setting, ...] = ()

    def __post_init__(self) -> None:
        check_chain(self.stages)
        check_feedback(self.stages, self.feedback)

    @staticmethod
    def parse(text: "str | Codec | Stage | Setting") -> "Codec":
        """The chain that a text names: `Codec.parse("pca(ratio=8) | qsgd(bits=4)")`.

        Args:
            text: Stages and presets with their options, joined by `|`. A codec or a stage is taken as it is.
        """
        return text if isinstance(text, Codec) else _codec_of(_parts_of(text))

    def __or__(self, other: "Stage | Setting | Codec | str") -> "Codec":
        return _codec_of(self.parts + _parts_of(other))

    def __ror__(self, other: "Stage | Setting | str") -> "Codec":
        return _codec_of(_parts_of(other) + self.parts)

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        return " | ".join(str(part) for part in self.parts) or "none"

    def __repr__(self) -> str:
        return f"Codec({str(self)!r})"

    @cached_property
    def parts(self) -> tuple[Setting | Stage, ...]:
        """Settings and stages, as they are written."""
        return (*self.settings, *self.stages)

    @cached_property
    def offset(self) -> int:
        """The place of the first stage in the text; random draws and saved states are numbered by it."""
        return len(self.settings)

    # The cut.

    @cached_property
    def transforms(self) -> tuple[Transform, ...]:
        """The stages that lead into the space where sums are taken."""
        return tuple(takewhile(lambda stage: isinstance(stage, Transform), self.stages))  # type: ignore[arg-type]

    @cached_property
    def coders(self) -> tuple[Stage, ...]:
        """The stages that say how elements travel."""
        return self.stages[len(self.transforms) :]

    @property
    def additive(self) -> bool:
        """Sums can be taken on what this chain sends, by the backend's own all-reduce."""
        return not self.coders

    @property
    def unbiased(self) -> bool:
        """The average comes out right in expectation."""
        return all(stage.unbiased for stage in self.stages)

    # Settings.

    @cached_property
    def feedback(self) -> str:
        """How error feedback keeps its residual: fp32, bf16 or off (see the setting `feedback`)."""
        for setting in self.settings:
            if isinstance(setting, Feedback):
                return setting.keep
        if loss_keeper(self.stages) is not None:
            return "off"
        return "fp32" if any(stage.wants_feedback for stage in self.stages) else "off"

    @cached_property
    def beta(self) -> float:
        """The share of a new residual that is kept (1: all of it)."""
        return next((setting.beta for setting in self.settings if isinstance(setting, Feedback)), 1.0)

    @cached_property
    def decay(self) -> float:
        """What a residual is multiplied by before it enters (1: it enters as it is)."""
        return next((setting.decay for setting in self.settings if isinstance(setting, Feedback)), 1.0)

    @cached_property
    def delay(self) -> int:
        """Steps that travel uncompressed before the chain begins (see the setting `delay`)."""
        return next((setting.steps for setting in self.settings if isinstance(setting, Delay)), 0)

    # Sizes.

    @lru_cache(maxsize=4096)  # noqa: B019 (codecs are small, and equal ones share their entries)
    def specs(self, spec: Spec) -> tuple[Spec, ...]:
        """What each stage sees, and last what leaves the chain."""
        specs = [spec]
        for stage in self.stages:
            specs.append(stage.out(specs[-1]))
        return tuple(specs)

    def sum_spec(self, spec: Spec) -> Spec:
        """The elements of the space where sums are taken."""
        return self.specs(spec)[len(self.transforms)]

    def declined(self, spec: Spec) -> str | None:
        """Which stage always leaves a tensor of this spec as it is, why, and how it travels instead; None: no stage."""
        for stage, seen in zip(self.transforms, self.specs(spec), strict=False):
            reason = stage.declines(seen)
            if reason is not None:
                instead = Codec(stage.instead(STEADY, seen) or ())
                return f"{stage}: {reason}, travels {f'through {instead}' if instead.stages else 'as it is'}"
        return None

    def compresses(self, spec: Spec) -> bool:
        """Whether a tensor of this spec travels in fewer bytes once the chain has started up."""
        specs = self.specs(spec)
        for stage, seen in zip(self.transforms, specs, strict=False):
            if stage.declines(seen) is not None:
                instead = Codec(stage.instead(STEADY, seen) or ())
                return bool(instead.stages) and instead.compresses(Spec(seen.numel))
        return not specs[-1].exact or specs[-1].payload() < spec.payload()

    def residual_in_sum_space(self, spec: Spec) -> bool:
        """Whether a residual is kept in the space where sums are taken, which saves its way back and in again.

        Every transform must be an isometry that neither adds nor takes away elements, and no stage may work on what
        enters or was delivered: both are said in the tensor's own space.
        """
        fixed = bool(self.transforms and self.coders) and all(stage.isometry for stage in self.transforms)
        asked = any(isinstance(stage, (InputStage, DeliveryStage)) for stage in self.stages)
        return fixed and not asked and self.beta == 1.0 and self.sum_spec(spec).numel == spec.numel

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
        spec = Spec.of((numel,) if isinstance(numel, int) else tuple(numel))
        return chain_bytes(self.transforms, self.coders, spec, world_size, reduction)

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
        encode_message_into(links, Source(x), out)
        return out

    def message_bytes(self, numel: int) -> Size:
        """Bytes of a self-contained message of `numel` numbers; `.exact` is False where it is an expectation."""
        self._require_self_contained()
        return message_size(self.stages, Spec(numel))

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
        check_message(message, numel, out)
        if out is None:
            out = torch.zeros(numel, device=message.device) if add else torch.empty(numel, device=message.device)
        decode_message(self._links(numel), message, out, "add" if add else "write")
        return out

    def _links(self, numel: int, seed: int = 0, step: int = 0, rank: int = 0) -> list[Link]:
        spec = Spec(numel)
        return [
            Link(stage, Context(seen, stage.init(seen), rank=rank, seed=seed, step=step, stream=self.offset + i))
            for i, (stage, seen) in enumerate(zip(self.stages, self.specs(spec), strict=False))
        ]

    @property
    def self_contained(self) -> bool:
        """Whether one message says all that its reader needs, without agreement between ranks."""
        return self._agreeing is None

    @cached_property
    def _agreeing(self) -> Stage | None:
        """A stage that needs a context which the ranks share."""
        return next((stage for stage in self.stages if shares_context(stage)), None)

    def _require_self_contained(self) -> None:
        if (stage := self._agreeing) is not None:
            raise CodecError(
                f"{stage} needs the ranks to agree first, so it makes no message of its own;"
                " use simulate() or average()."
            )


def _parts_of(what: "str | Codec | Stage | Setting") -> tuple[Any, ...]:
    """The settings and stages of a chain or of a part of one, which need not be able to stand alone."""
    if isinstance(what, Codec):
        return what.parts
    if isinstance(what, (Stage, Setting)):
        return (what,)
    if not isinstance(what, str):
        raise CodecError(
            f"a codec is a text, a stage or a Codec; got {type(what).__name__}"
            f"{'; write none for no compression' if what is None else ''}."
        )
    return tuple(part for link in parse_links(what) for part in _parts_of(link))


def _codec_of(parts: Sequence[Any]) -> Codec:
    settings = tuple(takewhile(lambda part: isinstance(part, Setting), parts))
    stages = tuple(parts[len(settings) :])
    for part in stages:
        if isinstance(part, Setting):
            raise CodecError(
                f"{part.name} sets how the whole chain works and must come first; got it behind {stages[0].name}."
            )
    return Codec(stages, settings)


COMPOSER.append(lambda first, second: _codec_of(_parts_of(first) + _parts_of(second)))
