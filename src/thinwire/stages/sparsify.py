"""Only the largest numbers travel, with their positions."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.core.options import number
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import Encoded, Scene, Stage
from thinwire.errors import WireError
from thinwire.kernels import coders, sparse

_COUNT_BYTES = 4


@dataclass(frozen=True)
class TopK(Stage):
    """The ceil(density * n) numbers of largest magnitude; ties go to the lower position.

    Positions travel as a bitmap, as raw indices or as Rice-coded gaps, whichever is smallest for the message.
    Biased, |x - Q(x)|^2 <= (1 - density) |x|^2; error feedback keeps the rest.
    """

    name: ClassVar[str] = "topk"
    shown: ClassVar[tuple[str, ...]] = ("density",)

    density: float = number(low=1e-9, high=1.0, help="share of the numbers that travel")

    def kept(self, numel: int) -> int:
        return min(numel, math.ceil(self.density * numel))

    def out(self, spec: Spec) -> Spec:
        return spec.numbers(self.kept(spec.numel))

    def side(self, spec: Spec) -> Size:
        return Size(0, exact=False)

    def encode(self, x: Tensor, scene: Scene) -> Encoded:
        indices = sparse.largest(x, self.kept(x.numel()))
        return Encoded(x[indices], coders.pack_indices(indices, x.numel()))

    def decode(self, encoded: Encoded, scene: Scene, out: Tensor, add: bool = False) -> None:
        assert encoded.side is not None
        _scatter(encoded.values, encoded.side, self.kept(out.numel()), out, add)


@dataclass(frozen=True)
class Threshold(Stage):
    """The numbers of magnitude above `value`: as many as there are.

    In an average, numbers are compared as they enter the chain: this rank's share of the mean (gradient / ranks)
    plus what is held from earlier steps.
    """

    name: ClassVar[str] = "threshold"
    shown: ClassVar[tuple[str, ...]] = ("value",)

    value: float = number(low=0.0, high=3e38, help="magnitude above which numbers travel")

    def out(self, spec: Spec) -> Spec:
        return spec.numbers(spec.numel, exact=False)

    def side(self, spec: Spec) -> Size:
        return Size(0, exact=False)

    def received(self, side: Tensor | None, spec: Spec) -> Spec:
        return spec.numbers(self._count(side, spec.numel))

    def encode(self, x: Tensor, scene: Scene) -> Encoded:
        indices = sparse.above(x, self.value)
        count = torch.tensor([indices.numel()], dtype=torch.int32).view(torch.uint8).to(x.device)
        return Encoded(x[indices], torch.cat([count, coders.pack_indices(indices, x.numel())]))

    def decode(self, encoded: Encoded, scene: Scene, out: Tensor, add: bool = False) -> None:
        assert encoded.side is not None
        _scatter(encoded.values, encoded.side[_COUNT_BYTES:], self._count(encoded.side, out.numel()), out, add)

    def _count(self, side: Tensor | None, numel: int) -> int:
        if side is None or side.numel() < _COUNT_BYTES:
            raise WireError(f"a {self} message does not say how many numbers it has.")
        count = int.from_bytes(bytes(side[:_COUNT_BYTES].tolist()), "little")
        if count > numel:
            raise WireError(f"a {self} message says it has {count} of {numel} numbers.")
        return count


def _scatter(values: Tensor, packed: Tensor, count: int, out: Tensor, add: bool) -> None:
    indices = coders.unpack_indices(packed, out.numel(), count)
    if not add:
        out.zero_()
    sparse.scatter_add(out, indices, values)
