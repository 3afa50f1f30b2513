"""The contract of a stage. There are two kinds, transforms and wire coders, and four roles that a stage may add.

    gradient --[transforms]--> the space where sums are taken --[wire coders]--> bytes

A fast path is an object beside the contract (`core.fast`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from torch import Tensor

from thinwire.core.checks import expect_count, expect_keys, expect_number, expect_tensor
from thinwire.core.context import Context, State
from thinwire.core.fast import FastPath
from thinwire.core.ops import Rounds
from thinwire.core.options import check_options, print_options
from thinwire.core.source import Source
from thinwire.core.spec import Kind, Size, Spec
from thinwire.kernels.modes import Mode

if TYPE_CHECKING:
    from thinwire.core.codec import Codec


class Encoded(NamedTuple):
    """What a stage hands on: the elements for the next stage, and its own side bytes for the message."""

    values: Tensor
    side: Tensor | None = None


# `stage | stage` makes a Codec, which is made of stages: core.codec enters itself here.
COMPOSER: "list[Callable[[Any, Any], Codec]]" = []


def compose(first: Any, second: Any) -> "Codec":
    """The chain of two stages, settings, chains or texts."""
    return COMPOSER[0](first, second)


@dataclass(frozen=True)
class Stage:
    """One step of a chain: an immutable description that is its own configuration.

    `accepts`: kinds of elements it takes. `rounds`: rounds in which the ranks agree, in a step. `unbiased`: it decodes
    to its input in expectation. `wants_feedback`: a residual keeps what it loses, unless the chain says otherwise.
    None of the methods may change the state, except `rescale` and `observe`.
    """

    name: ClassVar[str] = ""
    shown: ClassVar[tuple[str, ...]] = ()  # options that are printed even when they have their default
    accepts: ClassVar[frozenset[Kind]] = frozenset({"float32"})
    rounds: ClassVar[int] = 0

    def __post_init__(self) -> None:
        check_options(self)

    def __or__(self, other: "Stage | Codec | str") -> "Codec":
        return compose(self, other)

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__

    @cached_property
    def _text(self) -> str:
        return self.name + print_options(self)

    @property
    def unbiased(self) -> bool:
        return False

    @property
    def wants_feedback(self) -> bool:
        return not self.unbiased

    def out(self, spec: Spec) -> Spec:
        """What the next stage sees."""
        raise NotImplementedError

    def agreement(self, spec: Spec, ranks: int) -> Size:
        """Bytes a rank sends to agree, in one step."""
        return Size(0)

    def init(self, spec: Spec) -> State:
        """The state of one segment at its first step."""
        return {}

    def check_state(self, state: State, spec: Spec) -> None:
        """Raise StateError unless this is a state that the stage may have saved, without what is `rank_local`.

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

    def rescale(self, state: State, factor: float) -> None:
        """Follow a change of the loss scale: state that was measured in the gradient's unit is multiplied."""

    def agree(self, x: Source, ctx: Context) -> Rounds[Any]:
        """Communicate until the ranks share a context; what is returned becomes `ctx.shared`.

        `x.tensor()` gives the elements; whoever does not need them lets them be made later.
        """
        yield from ()
        return None

    def encode(self, x: Tensor, ctx: Context) -> Encoded:
        raise NotImplementedError

    def decode(self, encoded: Encoded, ctx: Context, out: Tensor, mode: Mode = "write") -> None:
        """Write the decoded elements into `out`, add them to it, or subtract them from it; `ctx.spec.numel` fp32."""
        raise NotImplementedError

    def observe(self, mean: Tensor, ctx: Context) -> None:
        """Learn from the averaged result, equally on every rank; it runs once the result is known to be finite."""

    def fast(self, spec: Spec) -> FastPath | None:
        """A fast path for these elements (`core.fast`); None: there is none. It is asked for once and used again."""
        return None


class Transform(Stage):
    """A stage whose encodings can be summed: with one shared context, the sum of them decodes to the sum of the inputs.

    `isometry`: a fixed linear map that keeps lengths, so that a residual can stay in its output. A transform without
    shared context may also stand among wire coders. `portable`: from the same bits it decodes the same bits, whatever
    processor and library compute.
    """

    isometry: ClassVar[bool] = False
    portable: ClassVar[bool] = True

    def declines(self, spec: Spec) -> str | None:
        """Why this stage is never ready for tensors of this spec, such as "too small for rank 4"; None: it will be."""
        return None

    def instead(self, state: State, spec: Spec) -> tuple[Stage, ...] | None:
        """Wire coders that carry the elements while this stage is not ready; (): as they are; None: it is ready."""
        return None


class WireCoder(Stage):
    """A stage that says how elements travel; sums are taken of what it decodes.

    `preferred_reduction`: the one that gives it its meaning, taken unless another is asked for.
    """

    preferred_reduction: ClassVar[str | None] = None

    def side(self, spec: Spec) -> Size:
        """Bytes of side information in a message; not exact means that they follow their length."""
        return Size(0)

    def received(self, side: Tensor | None, spec: Spec) -> Spec:
        """`out(spec)` as a receiver knows it; coders of variable output read it from their side bytes."""
        return self.out(spec)

    def shard_multiple(self, spec: Spec) -> int:
        """Shards begin at multiples of this many elements."""
        return 1


class InputStage:
    """A role: the stage says what enters the chain in place of this rank's share of the gradient.

    `rank_local`: state that, like a residual, is a rank's own and adds up over the ranks. `keeps_losses`: the stage
    itself makes up for what the chain loses, so that there is no residual.
    """

    rank_local: ClassVar[tuple[str, ...]] = ()
    keeps_losses: ClassVar[bool] = False

    def accumulate(self, share: Source, ctx: Context) -> Source:
        """What enters in place of the share (momentum correction); the residual is added to it."""
        return share

    def residual_steps(self, state: State) -> int:
        """The residual enters in equal parts over this many steps."""
        return 1


class ScheduledStage:
    """A role: how many elements the stage gives changes from step to step."""

    def out_now(self, ctx: Context) -> Spec:
        """What the next stage sees in this step."""
        raise NotImplementedError


class DecidingStage:
    """A role: the stage decides from a tensor's gradients how it works on them, equally on all ranks."""

    def decided(self, state: State, spec: Spec) -> str | None:
        """What it decided, in a few words for plans; None: nothing (yet)."""
        raise NotImplementedError

    def left_out(self, state: State) -> bool:
        """Whether it decided that the chain works as without it, from now on."""
        return False


class DeliveryStage:
    """A role: the stage is told what this rank delivered."""

    def delivered(self, sent: Tensor, ctx: Context) -> None:
        """`sent` is this rank's contribution to the result, in the segment's own space."""
        raise NotImplementedError


@lru_cache(maxsize=4096)
def fast_path(stage: Stage, spec: Spec) -> FastPath | None:
    """What `stage.fast(spec)` returns: it depends on nothing else, and every step asks several times."""
    return stage.fast(spec)


@lru_cache(maxsize=4096)
def elements_of(stage: Stage, spec: Spec) -> int | None:
    """How many elements a stage gives of these; None: it gives bytes, or integers that stand for several."""
    out = stage.out(spec)
    return None if out.kind in ("bytes", "int32") else out.numel


def shares_context(stage: Stage) -> bool:
    """Whether the ranks must agree before this stage can encode or decode."""
    return type(stage).agree is not Stage.agree


def may_code(stage: Stage) -> bool:
    """Whether a stage may stand among the wire coders, after the cut."""
    return not isinstance(stage, Transform) or not (shares_context(stage) or isinstance(stage, InputStage))
