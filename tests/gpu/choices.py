"""What the kernels of selection and importance are tried on, and the comparison with the reference."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from tests.gpu.cases import special
from tests.gpu.emulation import emulated, reference
from thinwire.kernels import importance, sparse
from thinwire.kernels.answers.inputs import same_bits
from thinwire.kernels.gpu import entry

KINDS = ("ordinary", "often equal", "nan", "inf", "subnormal", "zeros", "largest", "smallest", "mixed")


def elements(kind: str, n: int, g: torch.Generator) -> Tensor:
    if kind != "often equal":
        return special(kind, n, g)
    return torch.randn(n, generator=g).mul(2).round().div(2)


@contextmanager
def several_programs(blocks: int = 2) -> Iterator[None]:
    """Short tensors are chosen from as long ones are, by programs of so many blocks."""
    with (
        mock.patch.object(entry.select, "_SHORT", 0),
        mock.patch.object(entry.select, "_BLOCKS", blocks),
        mock.patch.object(entry.select, "_TOGETHER", blocks * 512),
    ):
        yield


def compare(choose: Callable[[], Tensor], **target: Any) -> None:
    with reference():
        wanted = choose()
    with emulated(**target):
        found = choose()
    assert same_bits(found, wanted), (found.numel(), wanted.numel())


def check_largest(x: Tensor, k: int, **target: Any) -> None:
    held = torch.cat([torch.zeros(1), x])[1:] if k % 2 else x  # aligned or not
    compare(lambda: sparse.largest(held, k), **target)


def check_chunks(x: Tensor, chunk: int, each: int, rest: int, **target: Any) -> None:
    compare(lambda: sparse.largest_in_chunks(x, chunk, each, rest), **target)


def check_above(x: Tensor, value: float, **target: Any) -> None:
    compare(lambda: sparse.above(x, value), **target)


def check_importance(v: Tensor, weights: Tensor, ranks: int, k: int, **target: Any) -> None:
    compare(lambda: importance.importance(v, weights, 0.01, ranks), **target)
    compare(lambda: importance.most_important(v, weights, 0.01, ranks, k), **target)
