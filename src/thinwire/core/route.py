"""Every choice for speed, made in one place before data moves."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from thinwire.core.buffers import Buffers
from thinwire.core.codec import Codec
from thinwire.core.context import State
from thinwire.core.fast import BlockCoder, PartCoder
from thinwire.core.reducers import choose_reduction
from thinwire.core.reducers.work import Keep
from thinwire.core.spec import Spec
from thinwire.core.stage import DeliveryStage, Stage, fast_path, shares_context

Encoding: TypeAlias = Literal["whole", "blocks", "parts"]


@dataclass(frozen=True)
class StepInfo:
    """Who averages, and when: this rank of how many, at which step, with which seed, in which work memory."""

    rank: int = 0
    ranks: int = 1
    seed: int = 0
    step: int = 0
    reduction: str | None = None
    bundle_numel: int = 0  # elements that travel in the same rounds, if more than the tensor's own
    measure: bool = False  # note how much of what was given is lost, at the cost of one more decoding
    buffers: Buffers = field(default_factory=Buffers)

    def empty(self, like: Tensor) -> Tensor:
        return self.buffers.empty(like.numel(), like.dtype, like.device)

    def alone(self, like: Tensor) -> Tensor:
        """The same, but it may be kept in a slot."""
        return self.buffers.alone(like.numel(), like.dtype, like.device)


@dataclass(frozen=True)
class Route:
    """The way that the elements of one tensor take in one step.

    `transforms`: so many of the chain's transforms work. `instead`: wire coders in place of all that follows them,
    while a transform is not ready or the chain's delay is not over; None: the chain's own. `wish`: the reduction that
    is asked for. `encoding`: how the last transform works, on the whole tensor, block by block, or in parts if the
    shared context of the step allows it. `keep`: what must be known of this rank's contribution. `in_sum_space`: the
    residual is kept there. `share`: the divided gradient is needed in memory; otherwise a coder may divide by itself.
    """

    transforms: int
    instead: tuple[Stage, ...] | None
    wish: str | None
    encoding: Encoding
    keep: Keep
    in_sum_space: bool
    share: bool


def route(
    codec: Codec,
    spec: Spec,
    states: Sequence[State],
    info: StepInfo,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Route:
    """The route of a tensor of this spec, device and type, with these states of its stages."""
    transforms = len(codec.transforms)
    instead: tuple[Stage, ...] | None = None
    if info.step < codec.delay:
        transforms, instead = 0, ()
    elif transforms:
        for at, (stage, seen) in enumerate(zip(codec.transforms, codec.specs(spec), strict=False)):
            instead = stage.instead(states[at], seen)
            if instead is not None:
                transforms = at
                break
    sums = info.ranks, info.reduction, info.bundle_numel
    return _route(codec, spec, transforms, instead, *sums, info.measure, device, dtype)


@lru_cache(maxsize=4096)
def _route(
    codec: Codec,
    spec: Spec,
    transforms: int,
    instead: tuple[Stage, ...] | None,
    ranks: int,
    reduction: str | None,
    bundle_numel: int,
    measure: bool,
    device: str,
    dtype: torch.dtype,
) -> Route:
    """The route once it is known which transforms work: it is the same in most steps."""
    wish = reduction if instead is None else None
    in_sum_space = instead is None and codec.residual_in_sum_space(spec)
    keep = _keep(codec, transforms, in_sum_space, measure)
    whole = instead is not None or not codec.transforms
    encoding = "whole" if whole else _encoding(codec, spec, ranks, wish, bundle_numel, measure, device)
    share = measure or dtype != torch.float32 or keep == "delivered" or (keep == "remainder" and not transforms)
    return Route(transforms, instead, wish, encoding, keep, in_sum_space, share)


def _keep(codec: Codec, transforms: int, in_sum_space: bool, measure: bool) -> Keep:
    told = any(isinstance(stage, DeliveryStage) for stage in codec.stages)
    if not codec.stages or not (measure or told or codec.feedback != "off"):
        return "nothing"
    return "delivered" if told or (transforms and not in_sum_space) else "remainder"


def _encoding(
    codec: Codec, spec: Spec, ranks: int, wish: str | None, bundle_numel: int, measure: bool, device: str
) -> Encoding:
    """Blocks: the first message leaves before the rest is transformed. Parts: sums overlap with work.

    Elsewhere than on the CPU nobody does other work between blocks, and each would cost a launch.
    """
    last = codec.transforms[-1]
    seen, sums = codec.specs(spec)[len(codec.transforms) - 1 : len(codec.transforms) + 1]
    fast = fast_path(last, seen)
    if isinstance(fast, PartCoder) and not codec.coders:
        return "parts"
    agreed = any(shares_context(stage) for stage in codec.stages)
    simple = len(codec.transforms) == 1 and codec.coders and not agreed and not measure and device == "cpu"
    if not isinstance(fast, BlockCoder) or not simple:
        return "whole"
    sharded = choose_reduction(codec.coders, sums, ranks, wish, bundle_numel) == "sharded"
    return "blocks" if sharded else "whole"
