"""Stages that touch no data and only set how the chain behind them works."""

from dataclasses import dataclass
from typing import ClassVar

from thinwire.core.options import choice, number
from thinwire.core.stage import Stage


@dataclass(frozen=True, repr=False)
class Feedback(Stage):
    """How error feedback keeps what a chain failed to deliver: `feedback(keep=bf16) | topk(density=0.01)`.

    Without it, biased chains keep an fp32 residual and unbiased ones none. `beta` < 1 is ScaleCom's low-pass
    filter: e <- (1 - beta) e + beta (given - delivered), which forgets instead of conserving.
    """

    name: ClassVar[str] = "feedback"
    settings: ClassVar[bool] = True
    shown: ClassVar[tuple[str, ...]] = ("keep",)

    keep: str = choice("fp32", "fp32", "bf16", "off", help="the type of the residual; off keeps none")
    beta: float = number(1.0, low=0.0, high=1.0, help="share of a new residual that is kept")


@dataclass(frozen=True, repr=False)
class Delay(Stage):
    """Leaves the first steps uncompressed, when gradients change fast: `delay(steps=100) | sign`."""

    name: ClassVar[str] = "delay"
    settings: ClassVar[bool] = True
    shown: ClassVar[tuple[str, ...]] = ("steps",)

    steps: int = number(low=0, high=2**31, whole=True, help="steps that travel as they are")
