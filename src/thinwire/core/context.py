"""What a stage sees while it works."""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from thinwire.core.buffers import Buffers
from thinwire.core.spec import DTYPES, Spec
from thinwire.kernels.reference.hashing import make_key

State: TypeAlias = dict[str, Any]  # tensors and plain numbers only: it goes into checkpoints as it is

STEADY: State = {"steady": True}  # the state of a stage that has started up, for sizes without data

NEAR_OVERFLOW = 2.0**127  # twice this is not finite in fp32
EVERYONE = -1  # the "rank" of draws that all ranks share


@dataclass
class Context:
    """Where and when a stage works: the segment's spec and state, the ranks, the step, the shared context.

    `contributions` tells a decoder of how many ranks its input is the sum (an affine stage adds its mean in
    that proportion; 0 decodes a difference). `base` is the position of the first element in the segment. `dial` is the
    share of its usual loss that a stage with a dial may cause now (`core.schedule`). `has_residual`: a residual of
    earlier steps enters in this one.
    """

    spec: Spec
    state: State
    rank: int = 0
    ranks: int = 1
    step: int = 0
    seed: int = 0
    stream: int = 0
    base: int = 0
    contributions: int = 1
    shared: Any = None  # what the ranks agreed on
    stash: Any = None  # what a stage keeps from `accumulate` or `encode` until `delivered` or `observe`
    weights: Tensor | None = None  # of the parameter, in its own shape and type; for the first stage
    dial: float = 1.0
    has_residual: bool = False
    notes: dict[str, float] = field(default_factory=dict)
    buffers: Buffers = field(default_factory=Buffers)

    def moved(self, **changes: Any) -> "Context":
        """A copy with other values; `dataclasses.replace` takes several times as long, and there are many."""
        other = object.__new__(Context)
        other.__dict__.update(self.__dict__)
        other.__dict__.update(changes)
        return other

    def empty(self, numel: int, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Work memory on the device of `like`, of its type or another; it lasts as long as the step."""
        return self.buffers.empty(numel, dtype or like.dtype, like.device)

    def key(self) -> int:
        """The key of this rank's own random draws at this stage and step."""
        return make_key(self.seed, self.step, self.rank, self.stream)

    def shared_key(self) -> int:
        """The key of draws that come out equal on all ranks."""
        return make_key(self.seed, self.step, EVERYONE, self.stream)

    def count(self, name: str, amount: float) -> None:
        self.notes[name] = self.notes.get(name, 0) + amount


def empty_like_spec(spec: Spec, buffers: Buffers, device: torch.device) -> Tensor:
    """Work memory for the elements of this spec."""
    if spec.kind == "symbols":
        return buffers.empty(spec.numel, torch.uint8 if spec.bits <= 8 else torch.int32, device)
    return buffers.empty(spec.numel, DTYPES[spec.kind], device)
