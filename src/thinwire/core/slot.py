"""The memory of one segment: each stage's state, and the residual of error feedback."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from thinwire.core.buffers import Buffers
from thinwire.core.inputs import check_dense
from thinwire.core.spec import Spec
from thinwire.core.stage import Encoded, Scene, State
from thinwire.errors import StateError

if TYPE_CHECKING:
    from thinwire.core.codec import Codec


@dataclass
class Slot:
    """What one tensor's codec remembers between steps. A new slot is empty; `average` fills it at the first step.

    Give every tensor its own slot, and keep it between steps. All arguments but `dial` are for restoring a slot;
    `from_state_dict` does it.

    Args:
        chain: The codec that the slot belongs to, as text.
        shape: The shape of the tensor that it belongs to.
        states: The state of each stage.
        held: The residual as it is stored. Read `residual` instead.
        steps: Steps averaged so far.
        notes: Figures of the last step, such as the number of saturated values.
        dial: Set by the user, equal on all ranks: 0.5 halves what stages with a dial drop, 0 makes them drop nothing.
        behind: Whether `held` is stored transformed, behind the chain's orthonormal stages.

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
    held: Tensor | None = None
    steps: int = 0
    notes: dict[str, float] = field(default_factory=dict)
    dial: float = 1.0
    behind: bool = False

    @property
    def residual(self) -> Tensor | None:
        """What was given and not delivered, in the tensor's own space; from now on it is held there."""
        if self.behind and self.held is not None:
            self.held = self._brought_back(self.held.float()).to(self.held.dtype)
        self.behind = False
        return self.held

    @residual.setter
    def residual(self, value: Tensor | None) -> None:
        self.held, self.behind = value, False

    def _brought_back(self, y: Tensor) -> Tensor:
        from thinwire.core.codec import Codec

        codec = Codec.parse(self.chain)
        specs = codec.specs(Spec.of(self.shape))
        for i in reversed(codec.prefix):
            x = torch.empty_like(y)
            codec.stages[i].decode(Encoded(y), Scene(specs[i], {}), x)
            y = x
        return y

    def open(self, codec: "Codec", shape: tuple[int, ...]) -> None:
        """Prepare an empty slot for this chain and shape, or check that a used one belongs to them."""
        if self.held is not None:
            check_dense("the residual of a slot", self.held, StateError)
        if not self.chain:
            self.chain, self.shape = str(codec), shape
            specs = codec.specs(Spec.of(shape))
            self.states = [stage.init(spec) for stage, spec in zip(codec.stages, specs, strict=False)]
        elif self.chain != str(codec) or self.shape != shape:
            raise StateError(
                f"this slot belongs to {self.chain!r} on shape {self.shape}, not to {str(codec)!r} on {shape};"
                " give every tensor a slot of its own."
            )

    def hold(self, codec: "Codec", missing: Tensor, behind: bool, buffers: Buffers) -> None:
        """Keep what is missing for the next step: where it lies, if `buffers` leave that to us, or else in the memory
        that held the last step's."""
        if codec.feedback == "off" or missing is self.held:
            return
        dtype = torch.bfloat16 if codec.feedback == "bf16" else torch.float32
        if codec.beta != 1.0 and self.held is not None:
            missing = torch.lerp(self.held.float(), missing, codec.beta)
        if missing.dtype == dtype and buffers.kept(missing, self.held):
            self.held = missing
        elif self.held is None or self.held.dtype != dtype:
            self.held = missing.to(dtype, copy=True)
        else:
            self.held.copy_(missing)
        self.behind = behind

    def rescale(self, factor: float) -> None:
        """Follow a change of the loss scale: what is held was measured in the old unit."""
        from thinwire.core.codec import Codec

        if self.held is not None:
            self.held.mul_(factor)
        for stage, state in zip(Codec.parse(self.chain or "none").stages, self.states, strict=False):
            stage.rescale(state, factor)

    def state_dict(self) -> dict[str, Any]:
        """Tensors, numbers and text only; the residual is a copy, because steps change it and use its memory again."""
        return {
            "chain": self.chain,
            "shape": list(self.shape),
            "states": [dict(state) for state in self.states],
            "residual": _copied(self.held),
            "steps": self.steps,
            "dial": self.dial,
            "behind": self.behind,
        }

    @staticmethod
    def from_state_dict(saved: dict[str, Any]) -> "Slot":
        """A slot as it was saved; what is missing or of the wrong type is a StateError."""
        try:
            residual = saved["residual"]
            if residual is not None and not isinstance(residual, Tensor):
                raise TypeError("its residual is not a tensor")
            return Slot(
                str(saved["chain"]),
                tuple(int(extent) for extent in saved["shape"]),
                [{key: _copied(value) for key, value in state.items()} for state in saved["states"]],
                _copied(residual),
                int(saved["steps"]),
                dial=float(saved["dial"]),
                behind=bool(saved.get("behind", False)),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as reason:
            raise StateError(f"this is not the saved state of a slot ({reason!r}).") from reason


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
