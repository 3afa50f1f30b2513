"""Fast paths change nothing but speed: every chain gives the same bits without any of them.

With one exception: in a ring, the parts of a learnt basis are whole slices. Their bounds fall elsewhere than those of
single elements, so that some sums are added up in another order, and the last segments are filled up further.
"""

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import pytest
import torch
from torch import Tensor

import thinwire
from tests.contract.rows import ROWS, gradients, simulate
from tests.contract.test_contract import reductions, same
from thinwire.core import shards, source
from thinwire.core.fast import FastPath
from thinwire.core.message import fixed_message
from thinwire.core.reducers import sharded
from thinwire.core.spec import Spec
from thinwire.core.stage import Stage, fast_path
from thinwire.stages import fourier
from thinwire.stages.pca import PCA

T = TypeVar("T")

SHAPES = [(24, 3, 3, 3), (35, 29)]  # even and odd numbers of elements
# Chains whose fast path works in other steps or states than those of the rows.
MORE_ROWS = [
    "pca(ratio=4, warmup=0, sample=2, reuse=3, slice=50, order=filters)",
    "pca(ratio=4, warmup=0, sample=2, reuse=4, limit=0.1, travel='qsgd(bits=8)')",
    "momentum(beta=0.9) | pca(ratio=4, warmup=0, sample=2, reuse=9)",
    "momentum(beta=0.9) | integers(bits=8)",
    "momentum(beta=0.9) | fft(chunk=64) | topk(density=0.1)",
    "importance(density=0.1, momentum=0.9)",
    "feedback(keep=fp32) | randomk(density=0.1)",
    "feedback(keep=bf16) | fft(chunk=64) | qsgd(bits=4, bucket=32)",
    "feedback(keep=fp32) | hadamard(chunk=64) | rangefloat(bits=8)",
    "feedback(beta=0.5) | integers(bits=8)",
]


def classes(of: type[T]) -> Iterator[type[T]]:
    """A class and all that are made of it."""
    yield of
    for each in of.__subclasses__():
        yield from classes(each)


@pytest.fixture(autouse=True)
def asks_again() -> Iterator[None]:
    """Fast paths are asked for once; what is found here with others switched off is of no use elsewhere."""
    forget_fast_paths()
    yield
    forget_fast_paths()


def forget_fast_paths() -> None:
    for kept in (fast_path, fixed_message):
        kept.cache_clear()


def without_fast_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """No stage has one, and those that something still keeps do not work."""

    def fails(*args: object) -> None:
        raise AssertionError("a fast path is used that was asked for before")

    forget_fast_paths()
    for stage in classes(Stage):
        if "fast" in vars(stage):
            monkeypatch.setattr(stage, "fast", lambda self, spec: None)
    for path in classes(FastPath):
        for name in {"writer", "reader", "encode", "decode", "parts", "finite"} & vars(path).keys():
            monkeypatch.setattr(path, name, fails)


class Found(NamedTuple):
    """What a step gave on all ranks."""

    means: list[Tensor]
    sent: list[int]
    kept: list[dict[str, Any]]


def outcomes(row: str, shape: tuple[int, ...], ranks: int, reduction: str | None) -> list[Found]:
    """Some steps; more where a basis must be learnt first."""
    slots, found = None, list[Found]()
    for step in range(9 if "pca" in row else 3):
        outcome = simulate(row, gradients(ranks, shape, seed=step), slots=slots, step=step, reduction=reduction)
        slots = outcome.slots
        kept = [copy.deepcopy(slot.state_dict()) for slot in slots]
        found.append(Found(outcome.means, outcome.sent, kept))
    return found


def ring_of_slices(row: str, ranks: int, reduction: str | None) -> bool:
    """The exception; a ring of one rank adds nothing up, and coders send elements one by one."""
    last = thinwire.Codec.parse(row).stages[-1:]
    return reduction == "ring" and ranks > 1 and any(isinstance(stage, PCA) for stage in last)


def assert_same(found: Found, wanted: Found) -> None:
    assert same(found.means, wanted.means)
    assert found.sent == wanted.sent
    assert same(found.kept, wanted.kept)


def assert_close(found: Found, wanted: Found) -> None:
    torch.testing.assert_close(found.means, wanted.means, rtol=1e-5, atol=1e-5)
    for kept, other in zip(found.kept, wanted.kept, strict=True):
        torch.testing.assert_close(kept["residual"], other["residual"], rtol=1e-5, atol=1e-5)


def test_there_are_fast_paths_to_leave_out(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [part for row in ROWS for part in thinwire.Codec.parse(row).stages]
    fast = {stage.name for stage in parts if isinstance(fast_path(stage, Spec.of(SHAPES[0])), FastPath)}
    assert {"qsgd", "sign", "rangefloat", "fp16", "fft", "integers", "pca", "powersgd", "randomk"} <= fast
    without_fast_paths(monkeypatch)
    assert not [stage.name for stage in parts if fast_path(stage, Spec.of(SHAPES[0])) is not None]


@pytest.mark.parametrize("long", [False, True], ids=["short", "in hops, slices and blocks"])
@pytest.mark.parametrize("row", ROWS + MORE_ROWS)
def test_fast_paths_change_nothing(row: str, long: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if long:
        monkeypatch.setattr(sharded, "LONG", 1)
        monkeypatch.setattr(shards, "SLICE", 40)
        monkeypatch.setattr(source, "_WORTH_SPLITTING", 1)
        monkeypatch.setattr(fourier, "_BLOCK", 128)
    cases = [(s, ranks, how) for s in SHAPES for ranks in (1, 3) for how in reductions(thinwire.Codec.parse(row))]
    expected = [outcomes(row, *case) for case in cases]
    without_fast_paths(monkeypatch)
    for case, wanted in zip(cases, expected, strict=True):
        _, ranks, reduction = case
        check = assert_close if ring_of_slices(row, ranks, reduction) else assert_same
        for found, expected_now in zip(outcomes(row, *case), wanted, strict=True):
            check(found, expected_now)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("row", ROWS + MORE_ROWS)
def test_fast_paths_find_what_is_not_finite(row: str, poison: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With them or without, the same ranks skip the same step."""

    def finite(reduction: str | None) -> list[object]:
        slots, seen = None, list[object]()
        for step in range(9 if "pca" in row else 3):
            given = gradients(3, SHAPES[0], seed=step)
            if step % 3 == 1:
                given[step % 2].view(-1)[70 * step] = poison
            outcome = simulate(row, given, slots=slots, step=step, reduction=reduction)
            slots = outcome.slots
            seen.append([*(bool(torch.isfinite(mean).all()) for mean in outcome.means), *(s.steps for s in slots)])
        return seen

    ways = reductions(thinwire.Codec.parse(row))
    fast = [finite(reduction) for reduction in ways]
    without_fast_paths(monkeypatch)
    assert [finite(reduction) for reduction in ways] == fast
