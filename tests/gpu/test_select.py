"""Selection and importance: compiled, emulated, and compared with the reference bit for bit; no wait that is hidden."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.device.sim import WAITING_OPS
from tests.gpu.choices import (
    KINDS,
    check_above,
    check_chunks,
    check_importance,
    check_largest,
    elements,
    several_programs,
)
from tests.gpu.emulation import emulated
from thinwire.kernels import importance, sparse
from thinwire.kernels.gpu import entry

LENGTHS = (1, 2, 31, 511, 512, 513, 1024, 1025, 2100)
TARGETS = [{"capability": 80}, {"capability": 89}, {"capability": 90}, {"num_warps": 4}]
CHUNKS = ((1000, 64, 5, 3), (900, 50, 50, 0), (100, 7, 1, 2), (1300, 600, 13, 100), (10, 64, 0, 3), (128, 64, 0, 0))


def counts(n: int) -> list[int]:
    return sorted({0, 1, n // 3, n - 1, n})


@pytest.mark.parametrize("kind", ["ordinary", "often equal", "mixed"])
def test_the_largest(kind: str) -> None:
    g = torch.Generator().manual_seed(0)
    with several_programs():
        for n in (1, 513, 2100):
            x = elements(kind, n, g)
            for k in counts(n):
                check_largest(x, k)


def test_the_largest_of_short_and_long_tensors_as_they_are_chosen_in_training() -> None:
    g = torch.Generator().manual_seed(1)
    for n in (0, 700, 8200):
        check_largest(elements("often equal", n, g), n // 10)


@pytest.mark.parametrize("kind", ["ordinary", "often equal", "nan"])
def test_the_largest_of_chunks(kind: str) -> None:
    g = torch.Generator().manual_seed(2)
    for n, *how in CHUNKS:
        check_chunks(elements(kind, n, g), *how)


def test_long_chunks_are_chosen_from_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry.select, "_LONGEST_CHUNK", 100)
    with several_programs():
        for n, how in ((400, (150, 7, 20)), (120, (150, 3, 9))):
            check_chunks(torch.randn(n, generator=torch.Generator().manual_seed(n)), *how)


@pytest.mark.parametrize("value", [0.0, 0.7, -1.0, float("nan"), float("inf")])
def test_what_lies_above_a_value(value: float) -> None:
    g = torch.Generator().manual_seed(3)
    with several_programs():
        for n, kind in ((0, "ordinary"), (1, "ordinary"), (1100, "often equal"), (2048, "nan")):
            check_above(elements(kind, n, g), value)


@pytest.mark.parametrize("ranks", [1, 3])
def test_importance(ranks: int) -> None:
    g = torch.Generator().manual_seed(4)
    for n in (1, 9, 512, 1300):
        check_importance(torch.randn(n, generator=g), torch.randn(n, generator=g), ranks, -(-n // 10))
    for kind in ("nan", "inf", "mixed", "zeros"):
        check_importance(elements("mixed", 600, g), elements(kind, 600, g), ranks, 50)
        check_importance(elements(kind, 600, g), elements("ordinary", 600, g), ranks, 50)


class Waits(TorchDispatchMode):
    """Counts what would wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[func.name().split(".")[0]] += 1
        return func(*args, **(kwargs or {}))

    @property
    def count(self) -> int:
        return sum(self.seen.get(name, 0) for name in WAITING_OPS)


def waits_of(choose: Any) -> int:
    with emulated():
        choose()  # compiled before anything is counted
        with (waits := Waits()):
            choose()
    assert waits.seen
    return waits.count


def test_only_a_threshold_waits_for_the_number_of_what_it_chose() -> None:
    x = torch.randn(1100, generator=torch.Generator().manual_seed(5))
    weights: Tensor = x.flip(0)
    with several_programs():
        assert waits_of(lambda: sparse.largest(x, 50)) == 0
        assert waits_of(lambda: sparse.largest_in_chunks(x, 64, 5, 1)) == 0
        assert waits_of(lambda: importance.most_important(x, weights, 0.01, 3, 50)) == 0
        assert waits_of(lambda: entry.select.above(x, 0x3F000000)) == 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_all_lengths_and_kinds(target: dict[str, int]) -> None:
    g = torch.Generator().manual_seed(6)
    with several_programs():
        for n in LENGTHS:
            for k in counts(n):
                check_largest(elements("often equal", n, g), k, **target)
        for kind in KINDS:
            x = elements(kind, 1300, g)
            check_largest(x, 400, **target)
            check_above(x, float(x[0]), **target)
            check_importance(x, torch.randn(1300, generator=g), 7, 100, **target)
    for kind in KINDS:
        for n, *how in CHUNKS:
            check_chunks(elements(kind, n, g), *how, **target)
