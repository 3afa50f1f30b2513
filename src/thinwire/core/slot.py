"""The memory of one segment: each stage's state, and the residual of error feedback."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from thinwire.core.buffers import Buffers
from thinwire.core.checks import (
    expect_count,
    expect_keys,
    expect_mapping,
    expect_number,
    expect_shape,
    expect_tensor,
    expect_text,
)
from thinwire.core.codec import Codec
from thinwire.core.context import Context, State
from thinwire.core.inputs import check_dense
from thinwire.core.spec import Spec
from thinwire.core.stage import DecidingStage, Encoded, InputStage
from thinwire.errors import CodecError, StateError

_SAVED = ("chain", "shape", "states", "residual", "steps", "dial")
_RESIDUALS = (torch.float32, torch.bfloat16)


@dataclass
class Slot:
    """What one tensor's codec remembers between steps. A new slot is empty; `average` fills it at the first step.

    Give every tensor its own slot, and keep it between steps. All arguments but `dial` are for restoring a slot;
    `from_state_dict` does it.

    Args:
        chain: The codec that the slot belongs to, as text.
        shape: The shape of the tensor that it belongs to.
        states: The state of each stage.
        residual_data: The residual as it is stored. Read `residual` instead.
        steps: Steps averaged so far.
        notes: Figures of the last step, such as the number of saturated values.
        dial: Set by the user, equal on all ranks: 0.5 halves what stages with a dial drop, 0 makes them drop nothing.
        in_sum_space: Whether `residual_data` is transformed by the chain's orthonormal stages.

    Examples:
        >>> slots = [thinwire.Slot(), thinwire.Slot()]
        >>> gradients = [torch.randn(1_000), torch.randn(1_000)]
        >>> for step in range(3):
        ...     outcome = thinwire.simulate("topk(density=0.1)", gradients, slots=slots, step=step)
        >>> slots[0].residual.shape  # what rank 0 has not delivered yet
        torch.Size([1000])
    """

    chain: str = ""
    shape: tuple[int, ...] = ()
    states: list[State] = field(default_factory=list)
    residual_data: Tensor | None = None
    steps: int = 0
    notes: dict[str, float] = field(default_factory=dict)
    dial: float = 1.0
    in_sum_space: bool = False
    finite: bool | Tensor = field(default=True, init=False, repr=False, compare=False)  # the mean of the last step

    def record_stream(self, stream: Any) -> None:
        """Tell the allocator of an accelerator that work on this stream uses the slot's memory."""
        for tensor in (self.residual_data, *(value for state in self.states for value in state.values())):
            if isinstance(tensor, Tensor) and not tensor.is_cpu:
                tensor.record_stream(stream)

    @property
    def residual(self) -> Tensor | None:
        """What was given and not delivered, in the tensor's own space.

        It is computed if it is stored transformed, so that to change it is to assign another one.
        """
        if not self.in_sum_space or self.residual_data is None:
            return self.residual_data
        return self._decoded(self.residual_data.float()).to(self.residual_data.dtype)

    @residual.setter
    def residual(self, value: Tensor | None) -> None:
        self.residual_data, self.in_sum_space = value, False

    def _decoded(self, y: Tensor) -> Tensor:
        codec = Codec.parse(self.chain)
        specs = codec.specs(Spec.of(self.shape))
        for stage, spec in reversed(list(zip(codec.transforms, specs, strict=False))):
            x = torch.empty_like(y)
            stage.decode(Encoded(y), Context(spec, {}), x)
            y = x
        return y

    def open(self, codec: Codec, shape: tuple[int, ...]) -> None:
        """Prepare an empty slot for this chain and shape, or check that a used one belongs to them."""
        if self.residual_data is not None:
            check_dense("the residual of a slot", self.residual_data, StateError)
        if not self.chain:
            self.chain, self.shape = str(codec), shape
            specs = codec.specs(Spec.of(shape))
            states = [stage.init(spec) for stage, spec in zip(codec.stages, specs, strict=False)]
            self.states = [*({} for _ in codec.settings), *states]
        elif self.chain != str(codec) or self.shape != shape:
            raise StateError(
                f"this slot belongs to {self.chain!r} on shape {self.shape}, not to {str(codec)!r} on {shape};"
                " give every tensor a slot of its own."
            )

    def hold(
        self, codec: Codec, missing: Tensor, in_sum_space: bool, buffers: Buffers, finite: Tensor | None = None
    ) -> None:
        """Keep what is missing for the next step: in its own memory, if `buffers` allow that, or else in the memory of
        the last step's residual. Where the flag `finite` is false, the last step's residual stays."""
        if codec.feedback == "off" or missing is self.residual_data:
            return
        dtype = torch.bfloat16 if codec.feedback == "bf16" else torch.float32
        if codec.beta != 1.0 and self.residual_data is not None:
            missing = torch.lerp(self.residual_data.float(), missing, codec.beta)
        if finite is not None:
            before = 0.0 if self.residual_data is None else self.residual_data.float()
            missing = torch.where(finite, missing, before)
        if missing.dtype == dtype and buffers.kept(missing, self.residual_data):
            self.residual_data = missing
        elif self.residual_data is None or self.residual_data.dtype != dtype:
            self.residual_data = missing.to(dtype, copy=True)
        else:
            self.residual_data.copy_(missing)
        self.in_sum_space = in_sum_space

    def in_use(self, codec: Codec) -> tuple[Codec, Sequence[int]]:
        """The chain without the stages that left themselves out, and the places of those that stay."""
        places = range(len(codec.stages))
        states = self.states[codec.offset :]
        out = {i for i, s in enumerate(codec.stages) if isinstance(s, DecidingStage) and s.left_out(states[i])}
        if not out:
            return codec, places
        kept = [i for i in places if i not in out]
        return _with_stages(codec, tuple(kept)), kept

    def decided(self, codec: Codec) -> list[str]:
        """What stages of this chain decided for this tensor from its gradients, in words."""
        if self.chain != str(codec):
            return []
        stages = zip(codec.transforms, codec.specs(Spec.of(self.shape)), self.states[codec.offset :], strict=False)
        words = [(s.name, s.decided(state, spec)) for s, spec, state in stages if isinstance(s, DecidingStage)]
        return [f"{name}: {said}" for name, said in words if said is not None]

    def rescale(self, factor: float) -> None:
        """Follow a change of the loss scale: the residual was measured in the old unit."""
        if self.residual_data is not None:
            self.residual_data.mul_(factor)
        codec = Codec.parse(self.chain or "none")
        for stage, state in zip(codec.stages, self.states[codec.offset :], strict=False):
            stage.rescale(state, factor)

    def state_dict(self) -> dict[str, Any]:
        """Tensors, numbers and text only; the residual is a copy, because steps change it and use its memory again."""
        return {
            "chain": self.chain,
            "shape": list(self.shape),
            "states": [dict(state) for state in self.states],
            "residual": _copied(self.residual_data),
            "steps": self.steps,
            "dial": self.dial,
            "behind": self.in_sum_space,
        }

    @staticmethod
    def from_state_dict(saved: Mapping[str, Any], codec: Codec | None = None) -> "Slot":
        """A slot as it was saved, with tensors of its own; what is missing, damaged or of another type is a StateError.

        `codec` is the chain whose slot it is: needed only if a text cannot name its stages.
        """
        try:
            expect_keys("it", expect_mapping("it", saved), _SAVED, ("behind",))
            states = saved["states"]
            if not isinstance(states, (list, tuple)):
                raise StateError(f"its states must be a list; got a {type(states).__name__}.")
            slot = Slot(
                expect_text("its chain", saved["chain"]),
                expect_shape("its shape", saved["shape"]),
                [dict(expect_mapping("the state of a stage", state)) for state in states],
                saved["residual"],
                saved["steps"],
                dial=saved["dial"],
                in_sum_space=saved.get("behind", False),
            )
            slot.check(codec)
        except StateError as reason:
            raise StateError(f"this is not the saved state of a slot: {reason}") from reason
        slot.residual_data = _copied(slot.residual_data)
        slot.states = [{key: _copied(value) for key, value in state.items()} for state in slot.states]
        return slot

    def check(self, codec: Codec | None = None) -> None:
        """Raise StateError unless every part is what a slot of its chain and shape may have."""
        expect_count("steps", self.steps)
        expect_number("dial", self.dial, 0.0, 1.0)
        if not isinstance(self.in_sum_space, bool):
            raise StateError(f"behind must be True or False; got a {type(self.in_sum_space).__name__}.")
        if not self.chain:
            if self.states or self.shape or self.in_sum_space:
                raise StateError("a slot without a chain has neither shape nor states.")
            if self.residual_data is not None:
                expect_tensor("the residual", self.residual_data, None, _RESIDUALS)
            return
        codec = self._codec(codec)
        if len(self.states) != len(codec.parts):
            raise StateError(f"{codec} has {len(codec.parts)} stages; got states of {len(self.states)}.")
        whole = Spec.of(self.shape)
        if self.residual_data is not None:
            expect_tensor("the residual", self.residual_data, (whole.numel,), _RESIDUALS)
        if self.in_sum_space and not codec.residual_in_sum_space(whole):
            raise StateError(f"{codec} does not keep its residual transformed by orthonormal stages.")
        for setting, state in zip(codec.settings, self.states, strict=False):
            expect_keys(f"the state of {setting}", state, ())
        for stage, spec, state in zip(codec.stages, codec.specs(whole), self.states[codec.offset :], strict=False):
            local = stage.rank_local if isinstance(stage, InputStage) else ()
            for key in local:
                if key in state:
                    expect_tensor(f"{key!r} of {stage}", state[key], (whole.numel,))
            stage.check_state({key: value for key, value in state.items() if key not in local}, spec)

    def _codec(self, codec: Codec | None) -> Codec:
        """The codec of this chain: the one that is given, if it is."""
        if codec is not None and str(codec) == self.chain:
            return codec
        try:
            codec = Codec.parse(self.chain)
        except CodecError as reason:
            raise StateError(f"its chain cannot be read: {reason}") from reason
        if str(codec) != self.chain:
            raise StateError(f"its chain must be written {str(codec)!r}; got {self.chain!r}.")
        return codec

    def shared(self, codec: Codec | None = None) -> tuple[Any, ...]:
        """What must be equal on all ranks, because it decides what they send to each other: steps, phases, the dial."""
        counts: list[dict[str, int]] = []
        if self.chain:
            codec = self._codec(codec)
            firsts = (s.init(spec) for s, spec in zip(codec.stages, codec.specs(Spec.of(self.shape)), strict=False))
            for first, state in zip(firsts, self.states[codec.offset :], strict=True):
                counts.append({key: state[key] for key, value in first.items() if isinstance(value, int)})
        return self.chain, self.shape, self.steps, self.dial, counts


@lru_cache(maxsize=4096)
def _with_stages(codec: Codec, places: tuple[int, ...]) -> Codec:
    """The chain with only the stages at these places; every step asks."""
    return Codec(tuple(codec.stages[i] for i in places), codec.settings)


def check_slot(slot: Any) -> Slot:
    """The slot that a caller gave, or a new one if there is none."""
    if slot is not None and not isinstance(slot, Slot):
        raise StateError(f"slot must be a thinwire.Slot, kept from step to step; got {type(slot).__name__}.")
    return Slot() if slot is None else slot


def _copied(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    check_dense("a tensor in the state of a slot", value, StateError)
    return value.clone()
