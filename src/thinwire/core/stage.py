"""The contract of a stage, and what a stage sees while it works."""

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor

from thinwire.core.buffers import Buffers
from thinwire.core.checks import expect_count, expect_keys, expect_number, expect_tensor
from thinwire.core.given import Given
from thinwire.core.ops import Rounds
from thinwire.core.options import check_options, print_options
from thinwire.core.spec import DTYPES, Kind, Size, Spec
from thinwire.kernels.quantise import Coder
from thinwire.kernels.reference.hashing import make_key

if TYPE_CHECKING:
    from thinwire.core.codec import Codec
    from thinwire.core.parts import Parts

State: TypeAlias = dict[str, Any]  # tensors and plain numbers only: it goes into checkpoints as it is

STEADY: State = {"steady": True}  # the state of a stage that has started up, for sizes without data

NEAR_OVERFLOW = 2.0**127  # twice this is not finite in fp32
EVERYONE = -1  # the "rank" of draws that all ranks share


class Encoded(NamedTuple):
    """What a stage hands on: the numbers for the next stage, and its own side bytes for the message."""

    values: Tensor
    side: Tensor | None = None


@dataclass
class Scene:
    """Where and when a stage works: the segment's spec and state, the ranks, the step, the shared context.

    `contributions` tells a decoder of how many ranks its input is the sum (an affine stage adds its mean in
    that proportion; 0 decodes a difference). `base` is the position of the first element in the segment. `divisor`:
    what is encoded is the numbers divided by this. `dial` is the share of its usual loss that a stage with a dial may
    cause now (`core.schedule`).
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
    divisor: int = 1
    context: Any = None
    stash: Any = None  # what a stage keeps from `accumulate` or `encode` until `settle` or `observe`
    weights: Tensor | None = None
    dial: float = 1.0
    notes: dict[str, float] = field(default_factory=dict)
    buffers: Buffers = field(default_factory=Buffers)

    def moved(self, **changes: Any) -> "Scene":
        """A copy with other values; `dataclasses.replace` takes several times as long, and there are many."""
        other = object.__new__(Scene)
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


@dataclass(frozen=True)
class Stage:
    """One step of a chain: an immutable description that is its own configuration.

    Facts for the chain: `additive`: with a shared context, the sum of encoded tensors decodes to the sum of the
    tensors. `wire`: may stand behind the cut, where sums are no longer taken. `unbiased`: decodes to its input in
    expectation. `feeds`: wants error feedback by default. `rounds`: rounds of agreement in a step. `settles`: wants
    to know what this rank delivered. `settings`: it only sets how the chain around it works, and touches no data.
    `standalone`: a message can be read without knowing step and seed. `prefers`: the reduction that gives a wire
    stage its meaning, taken unless another is asked for. `parted`: it has `parts`. `spreads`: what it decodes are the
    numbers it receives, and zeros. `divides`: its `encode_into` and its `writer`, or its parts', divide by the
    scene's divisor first. `orthonormal`: a fixed linear map that keeps lengths, without state or context, so that a
    residual can stay behind it. `late`: its `agree` does not read the numbers, so that they can be made later.
    `asks`: ranks tell each other the largest number that their `parts` encode, to know early whether the sum is
    finite. `sparse`: a wire stage that puts its values at positions and changes nothing else. `portable`: from the same
    bits it decodes the same bits, whatever processor and library compute.
    """

    name: ClassVar[str] = ""
    additive: ClassVar[bool] = False
    orthonormal: ClassVar[bool] = False
    wire: ClassVar[bool] = True
    rounds: ClassVar[int] = 0
    settles: ClassVar[bool] = False
    settings: ClassVar[bool] = False
    held: ClassVar[tuple[str, ...]] = ()  # state that, like a residual, is a rank's own and adds up over the ranks
    standalone: ClassVar[bool] = True
    portable: ClassVar[bool] = True
    divides: ClassVar[bool] = False
    late: ClassVar[bool] = False
    asks: ClassVar[bool] = False
    sparse: ClassVar[bool] = False
    parted: ClassVar[bool] = False
    spreads: ClassVar[bool] = False
    prefers: ClassVar[str | None] = None
    accepts: ClassVar[frozenset[Kind]] = frozenset({"float32"})
    shown: ClassVar[tuple[str, ...]] = ()  # options that are printed even when they have their default

    def __post_init__(self) -> None:
        check_options(self)

    def __or__(self, other: "Stage | Codec | str") -> "Codec":
        from thinwire.core.codec import Codec

        return Codec((self,)) | other

    def __str__(self) -> str:
        return self.name + print_options(self)

    __repr__ = __str__

    def options(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def unbiased(self) -> bool:
        return False

    @property
    def feeds(self) -> bool:
        return not self.unbiased

    @property
    def takes_as_given(self) -> bool:
        """Whether gradient and residual enter as they are, because neither `accumulate` nor `release` is overridden."""
        mine = type(self)
        return mine.accumulate is Stage.accumulate and mine.release is Stage.release

    # Sizes, before data.

    def out(self, spec: Spec) -> Spec:
        """What the next stage sees."""
        raise NotImplementedError

    def out_now(self, scene: Scene) -> Spec:
        """What the next stage sees in this step, where schedules change it."""
        return self.out(scene.spec)

    def side(self, spec: Spec) -> Size:
        """Bytes of side information in a message; not exact means that they travel behind their length."""
        return Size(0)

    def grain(self, spec: Spec) -> int:
        """Shards are cut at multiples of this many numbers."""
        return 1

    def seam(self, spec: Spec) -> int:
        """A message cut at a multiple of so many numbers is two that say the same, in as many bytes; 0: it is not."""
        return 0

    def block(self, spec: Spec) -> int:
        """Numbers that `encode_block` and `decode_block` turn into as many, whatever lies around them; 0: none such."""
        return 0

    def piece(self, spec: Spec) -> int:
        """Numbers of the output that a ring keeps together: what `parts` encodes at once."""
        return 1

    def agreement(self, spec: Spec, ranks: int) -> Size:
        """Bytes a rank sends to agree, in one step."""
        return Size(0)

    # State.

    def init(self, spec: Spec) -> State:
        """The memory of one segment at its first step."""
        return {}

    def declines(self, spec: Spec) -> str | None:
        """Why this stage is never ready for tensors of this spec, such as "too small for rank 4"; None: it will be."""
        return None

    def check_state(self, state: State, spec: Spec) -> None:
        """Raise StateError unless this is a state that the stage may have saved, without what it has `held`.

        By default: what `init` returns, with other numbers of at least 0 and other finite tensors of the same shape.
        """
        first = self.init(spec)
        expect_keys(f"the state of {self}", state, tuple(first))
        for key, value in first.items():
            what = f"{key!r} of {self}"
            if isinstance(value, Tensor):
                expect_tensor(what, state[key], value.shape, (value.dtype,))
            elif isinstance(value, int):
                expect_count(what, state[key])
            else:
                expect_number(what, state[key])

    def ready(self, state: State, spec: Spec) -> bool:
        """False: the chain ends before this stage for now, and what follows it is replaced by `detour`."""
        return True

    def detour(self) -> "Codec | None":
        """How the numbers travel while this stage is not ready; None: as they are."""
        return None

    def rescale(self, state: State, factor: float) -> None:
        """Follow a change of the loss scale: state that was measured in the gradient's unit is multiplied."""

    # Work. None of these may change the state, except the last two, which run after the result is known.

    def accumulates(self, scene: Scene) -> bool:
        """Whether `accumulate` has anything to do in this step; without it the share takes one pass over memory."""
        return type(self).accumulate is not Stage.accumulate

    def accumulate(self, gradient: Tensor, scene: Scene) -> Tensor:
        """What enters the residual in place of this rank's share of the gradient (momentum correction)."""
        return gradient

    def release(self, residual: Tensor, scene: Scene) -> Tensor:
        """The part of the residual that is added to this step's share; the rest stays held."""
        return residual

    def agree(self, x: Tensor, scene: Scene) -> Rounds[Any]:
        """Communicate until the ranks share a context; what is returned becomes `scene.context`."""
        yield from ()
        return None

    def encode(self, x: Tensor, scene: Scene) -> Encoded:
        raise NotImplementedError

    def decode(self, encoded: Encoded, scene: Scene, out: Tensor, add: bool = False) -> None:
        """Write (or add) the decoded numbers into `out`, fp32 of length `scene.spec.numel`."""
        raise NotImplementedError

    def received(self, side: Tensor | None, spec: Spec) -> Spec:
        """`out(spec)` as a receiver knows it; stages of variable output read it from their side bytes."""
        return self.out(spec)

    def parts(self, given: Given, scene: Scene) -> "Parts | None":
        """For an additive stage that can work on a few parts at a time, so that a ring overlaps work and transfer."""
        return None

    def undelivered(self, given: Tensor, own: Tensor, scene: Scene, out: Tensor) -> bool:
        """Write `given` less what `own` decodes to into `out`, if that is faster than decoding; False: it is not."""
        return False

    def settle(self, sent: Tensor, scene: Scene) -> None:
        """Change the state that depends on what this rank delivered (`sent`, in the segment's own space)."""

    def observe(self, mean: Tensor, scene: Scene) -> None:
        """Learn from the averaged result, equally on every rank."""

    # Fast paths of a chain's last stage: side bytes and packed payload in one go.

    def encode_into(self, x: Tensor, scene: Scene, message: Tensor) -> bool:
        """Write side and payload straight into `message` (of the exact size); False: not supported."""
        return False

    def decode_from(self, message: Tensor, scene: Scene, out: Tensor, add: bool) -> bool:
        """Decode side and payload straight from `message`; False: not supported."""
        return False

    # The same, prepared for all numbers of a segment and then called with a range of them and its message. Between the
    # messages of a journey the caches hold gradients, and whatever Python does there takes several times as long. The
    # scene's base is the position of the first number; a message of the wrong length is a WireError of the reader.

    def writer(self, x: Tensor, scene: Scene) -> Coder | None:
        """What will encode ranges of x, which may not be there yet, into messages of the exact size; None: not
        supported."""
        return None

    def reader(self, scene: Scene, out: Tensor, add: bool, negated: bool = False) -> Coder | None:
        """What will write (or add) what messages say into ranges of `out`, or the opposite; None: not supported."""
        return None

    def encode_block(self, x: Tensor, owed: Tensor | None, out: Tensor, ranks: int = 1) -> None:
        """A block of an orthonormal stage's input, or what is left at the end, divided by `ranks`; what is owed behind
        it is added."""
        raise NotImplementedError

    def decode_block(self, y: Tensor, out: Tensor) -> None:
        """The way back."""
        raise NotImplementedError

    def take_off(self, message: Tensor, scene: Scene, y: Tensor) -> bool:
        """y less what `message` decodes to, in one pass; False: not supported."""
        return False

    def tells_finite(self, message: Tensor, scene: Scene) -> bool | None:
        """Whether all that `message` (or a sum, with this context) decodes to is finite, if that is known without
        decoding it."""
        return None


def empty_like_spec(spec: Spec, buffers: Buffers, device: torch.device) -> Tensor:
    """Work memory for the numbers of this spec."""
    if spec.kind == "symbols":
        return buffers.empty(spec.numel, torch.uint8 if spec.bits <= 8 else torch.int32, device)
    return buffers.empty(spec.numel, DTYPES[spec.kind], device)
