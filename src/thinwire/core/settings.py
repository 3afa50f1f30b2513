"""Settings at the head of a chain: they touch no data and say how the chain after them works."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from thinwire.core.options import check_options, choice, number, print_options
from thinwire.core.stage import compose
from thinwire.errors import CodecError

if TYPE_CHECKING:
    from thinwire.core.codec import Codec
    from thinwire.core.stage import Stage


@dataclass(frozen=True)
class Setting:
    """One setting: an immutable description, written like a stage."""

    name: ClassVar[str] = ""
    shown: ClassVar[tuple[str, ...]] = ()  # options that are printed even when they have their default

    def __post_init__(self) -> None:
        check_options(self)

    def __or__(self, other: "Setting | Stage | Codec | str") -> "Codec":
        return compose(self, other)

    def __str__(self) -> str:
        return self.name + print_options(self)

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class Feedback(Setting):
    """How error feedback keeps what a chain failed to deliver: `feedback(keep=bf16) | topk(density=0.01)`.

    Without it, biased chains keep an fp32 residual and unbiased ones none. `beta` < 1 is ScaleCom's low-pass
    filter: e <- (1 - beta) e + beta (given - delivered), which forgets instead of conserving. `decay` < 1 makes the
    residual a decaying accumulator, that of SparseLoCo and DeMo: e <- decay e + gradient enters the chain, and
    e <- e - delivered stays. What enters is always delivered or held.
    """

    name: ClassVar[str] = "feedback"
    shown: ClassVar[tuple[str, ...]] = ("keep",)

    keep: str = choice("fp32", "fp32", "bf16", "off", help="the type of the residual; off keeps none")
    beta: float = number(1.0, low=0.0, high=1.0, help="share of a new residual that is kept")
    decay: float = number(1.0, low=0.0, high=1.0, help="what the residual is multiplied by before it enters")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decay != 1.0 and self.keep == "off":
            raise CodecError(f"{self}: keep=off keeps no residual that could decay; leave one of the two out.")
        if self.decay != 1.0 and self.beta != 1.0:
            raise CodecError(f"{self}: beta and decay are two rules for one residual; leave one of the two out.")


@dataclass(frozen=True, repr=False)
class Delay(Setting):
    """Leaves the first steps uncompressed, when gradients change fast: `delay(steps=100) | sign`."""

    name: ClassVar[str] = "delay"
    shown: ClassVar[tuple[str, ...]] = ("steps",)

    steps: int = number(low=0, high=2**31, whole=True, help="steps that travel as they are")
