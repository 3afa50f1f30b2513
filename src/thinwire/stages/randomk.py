"""A random sample of the numbers travels, at positions that all ranks draw alike."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from thinwire.core.context import Context
from thinwire.core.fast import FastPath
from thinwire.core.ops import Rounds
from thinwire.core.options import number, switch
from thinwire.core.source import Source
from thinwire.core.spec import Spec
from thinwire.core.stage import Encoded, Transform
from thinwire.kernels.modes import Mode
from thinwire.kernels.reference.hashing import hash32, make_key
from thinwire.kernels.shares import all_finite
from thinwire.stages.importance import scatter


@dataclass(frozen=True, repr=False)
class RandomK(Transform):
    """ceil(density * n) numbers at random positions that cost no bytes: every rank draws the same ones.

    By default they are sent as they are, and error feedback keeps the rest. `scaled` multiplies them by n/k instead,
    which is unbiased and needs no feedback, but has n/k - 1 times the square of the gradient as its variance.
    """

    name: ClassVar[str] = "randomk"
    shown: ClassVar[tuple[str, ...]] = ("density",)

    density: float = number(low=1e-9, high=1.0, help="share of the numbers that travel")
    scaled: bool = switch(False, help="multiply by n/k: unbiased, without feedback")

    @property
    def unbiased(self) -> bool:
        return self.scaled

    def kept(self, numel: int) -> int:
        return min(numel, math.ceil(self.density * numel))

    def out(self, spec: Spec) -> Spec:
        return spec.numbers(self.kept(spec.numel))

    def agree(self, x: Source, ctx: Context) -> Rounds[Any]:
        """The positions, drawn without a word between the ranks."""
        yield from ()
        return random_positions(ctx.shared_key(), x.numel, self.kept(x.numel), x.values.device)

    def encode(self, x: Tensor, ctx: Context) -> Encoded:
        values = x[ctx.shared]
        return Encoded(values * (x.numel() / values.numel()) if self.scaled else values)

    def decode(self, encoded: Encoded, ctx: Context, out: Tensor, mode: Mode = "write") -> None:
        scatter(encoded.values, ctx.shared, out, mode)

    def fast(self, spec: Spec) -> FastPath:
        return Scattered()


class Scattered(FastPath):
    """The decoded elements are the summed ones and zeros."""

    def finite(self, data: Tensor, ctx: Context) -> bool | None:
        return all_finite(data)


def random_positions(key: int, numel: int, count: int, device: torch.device) -> Tensor:  # -> [count]
    """`count` different positions below `numel`, each position with the probability count / numel (to 2^-32).

    The circle of positions, cut at a random point, is divided into `count` stretches, and one position is drawn in
    each: O(count) integer work, the same on every device. Positions of one stretch exclude each other, so the sample
    is spread more evenly than by drawing without replacement.
    """
    cuts = torch.arange(count + 1, dtype=torch.int64, device=device) * numel // max(count, 1)
    low, length = cuts[:-1], cuts[1:] - cuts[:-1]
    within = (hash32(key, 0, count, device) * length) >> 32
    start = make_key(key, 1, 0, 0) % max(numel, 1)
    return (low + within + start) % max(numel, 1)
