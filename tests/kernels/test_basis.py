"""Slices in a basis: compiled loops give the bits of the sums they stand for; wide bases give them up to rounding."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.numbers import same
from thinwire.errors import CodecError
from thinwire.kernels import basis, native
from thinwire.kernels.reference import basis as reference

ROWS = [1, 2, 7, 8, 9, 23]
LENGTHS = [1, 2, 7, 8, 9, 31, 64, 65, 136, 200]
KEPT = [1, 3, 7, 8, 9, 16]
LONG = 40_009  # slices of 64 numbers, enough to be written around the caches
PART = -1 / 3


def made(rows: int, length: int, kept: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Slices, columns, coefficients, the means of the slices and of the coefficients."""
    g = torch.Generator().manual_seed(seed)
    shapes = [(rows, length), (length, kept), (rows, kept), (rows, length), (rows, kept)]
    x, columns, q, mean, offset = (torch.randn(shape, generator=g) for shape in shapes)
    return x, columns, q, mean, offset


def less(x: Tensor, q: Tensor, columns: Tensor, mean: Tensor | None) -> Tensor:
    """x less what is rebuilt of q, subtracted in place."""
    left = x.clone()
    basis.subtract(q, columns, mean, PART, left)
    return left


def check(x: Tensor, columns: Tensor, q: Tensor, mean: Tensor | None, offset: Tensor | None) -> None:
    projected = basis.project(x, columns, offset, PART, torch.empty_like(q))
    assert same(projected, reference.project(x, columns, offset, PART))
    rebuilt = basis.rebuild(q, columns, mean, PART, torch.empty_like(x))
    assert same(rebuilt, reference.rebuild(q, columns, mean, PART))
    lying = columns.t().contiguous().t()  # the same numbers, column after column
    assert same(basis.rebuild(q, lying, mean, PART, torch.empty_like(x)), rebuilt)
    left = less(x, q, columns, mean)
    assert same(less(x, q, lying, mean), left)
    assert same(left, reference.without(x, q, columns, mean, PART))
    assert same(left, x - rebuilt)


@pytest.mark.parametrize("length", LENGTHS)
def test_compiled_loops_add_term_by_term(length: int, variant: str) -> None:
    for rows in ROWS:
        for kept in KEPT:
            x, columns, q, mean, offset = made(rows, length, kept, rows)
            check(x, columns, q, mean, offset)
            check(x, columns, q, None, None)


def test_long_results_are_the_same(variant: str) -> None:
    check(*made(LONG, 64, 3))


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_nothing(threads: int, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "LEAST_SHARED", 0)
    torch.set_num_threads(threads)
    try:
        check(*made(3001, 40, 5))
    finally:
        torch.set_num_threads(1)


@given(st.integers(1, 30), st.integers(1, 60), st.integers(1, 40), st.booleans(), st.integers(0, 2**31))
def test_any_width_gives_these_sums_up_to_rounding(rows: int, length: int, kept: int, centred: bool, seed: int) -> None:
    x, columns, q, mean, offset = made(rows, length, kept, seed)
    some, few = (mean, offset) if centred else (None, None)
    projected = basis.project(x, columns, few, PART, torch.empty_like(q))
    rebuilt = basis.rebuild(q, columns, some, PART, torch.empty_like(x))
    left = less(x, q, columns, some)
    for result, expected in (
        (projected, x.double() @ columns.double() + (0 if few is None else few.double() * PART)),
        (rebuilt, q.double() @ columns.double().t() + (0 if some is None else some.double() * PART)),
    ):
        assert torch.allclose(result.double(), expected, rtol=0, atol=1e-4)
    assert same(left, x - rebuilt)


def test_memory_at_odd_addresses_is_written(variant: str) -> None:
    x, columns, q, mean, _ = made(LONG, 64, 3)
    out = torch.empty(x.numel() + 1)[1:].view_as(x)
    basis.subtract(q, columns, mean, PART, out.copy_(x))
    assert same(out, reference.without(x, q, columns, mean, PART))


def test_what_is_not_finite_stays_so(variant: str) -> None:
    x, columns, q, mean, offset = made(20, 16, 4)
    x[3, 5], q[4, 1] = float("nan"), float("inf")
    check(x, columns, q, mean, offset)


def test_what_does_not_fit_is_refused() -> None:
    x, columns, q, mean, offset = made(6, 8, 2)
    with pytest.raises(CodecError, match="fit each other"):
        basis.project(x, columns, offset, PART, torch.empty(6, 3))
    with pytest.raises(CodecError, match="fit each other"):
        basis.rebuild(q, columns, mean[:5], PART, torch.empty(6, 8))
    with pytest.raises(CodecError, match="fit each other"):
        basis.subtract(q, columns, mean, PART, x[:, :4])
