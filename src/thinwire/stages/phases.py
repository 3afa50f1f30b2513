"""Steps of stages that only count most of them: on an accelerator, nobody need know whether their mean is finite."""

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor

from thinwire.core.context import Context
from thinwire.core.fast import FastPath

Observe: TypeAlias = Callable[[Tensor, Context], None]
Looks: TypeAlias = Callable[[Context], bool]


class Phases(FastPath):
    """Of a stage whose `observe` counts steps, and looks at the mean only in some of them."""

    def __init__(self, observe: Observe, looks: Looks) -> None:
        self.observe, self.looks = observe, looks

    def selects(self, ctx: Context) -> bool:
        return not self.looks(ctx)

    def select(self, finite: Tensor, mean: Tensor, ctx: Context) -> None:
        self.observe(mean, ctx)
