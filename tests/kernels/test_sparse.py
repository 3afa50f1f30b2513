import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.numbers import same
from thinwire.errors import CodecError
from thinwire.kernels import sparse
from thinwire.kernels.reference import sparse as reference

pytestmark = pytest.mark.usefixtures("variant")
LENGTHS = [*range(70), 127, 128, 129, 255, 511, 1000, 1024, 1100]


def by_sorting(x: Tensor, k: int) -> list[int]:
    keys = (x.view(torch.int32) & 0x7FFFFFFF).tolist()
    return sorted(sorted(range(len(keys)), key=lambda i: (-keys[i], i))[:k])


def draws(n: int, seed: int) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=g)
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -3.0, 3.0])
    return [
        x,
        x.round(),
        torch.zeros(n),
        torch.full((n,), -2.5),
        special[torch.randint(8, (n,), generator=g)],
        x.sort().values,
    ]


@pytest.mark.parametrize("n", LENGTHS)
def test_largest_is_what_sorting_gives(n: int) -> None:
    for x in draws(n, n):
        for k in {0, 1, n // 100, n // 10, n // 2, n - 1, n}:
            if not 0 <= k <= n:
                continue
            expected = by_sorting(x, k)
            assert sparse.largest(x, k).tolist() == expected
            assert reference.largest(x, k).tolist() == expected


def adversarial(n: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(5)
    x = torch.randn(n, generator=g)
    hidden = torch.zeros(n)
    hidden[1::4097] = x[1::4097]
    drifting = x * torch.linspace(0, 1, n) ** 20
    late = torch.zeros(n)
    late[-n // 50 :] = x[-n // 50 :]
    sampled = torch.full((n,), 2.0)
    sampled[: n // 2] = 1 + torch.rand(n // 2, generator=g)
    return {
        "random": x,
        "equal": torch.full((n,), 0.25),
        "zero": torch.zeros(n),
        "ascending": x.abs().sort().values,
        "descending": x.abs().sort(descending=True).values,
        "few values": x.round(),
        "two values": (x > 2).float(),
        "mostly zero": hidden,
        "drifting": drifting,
        "all at the end": late,
        "half tied": sampled,
        "periodic": x[:64].repeat(n // 64 + 1)[:n],
        "heavy tails": x**9,
        "not finite": torch.where(
            x > 2.5, torch.full_like(x, math.nan), torch.where(x < -2.5, torch.full_like(x, math.inf), x)
        ),
    }


@pytest.mark.parametrize("name", list(adversarial(64)))
@pytest.mark.parametrize("n", [20_000, 262_147])
def test_largest_survives_adversarial_data(name: str, n: int) -> None:
    x = adversarial(n)[name]
    for density in (0.0001, 0.001, 0.01, 0.06, 0.07, 0.3, 0.9, 0.9999):
        k = int(n * density)
        chosen = sparse.largest(x, k)
        assert torch.equal(chosen, reference.largest(x, k))
        assert chosen.numel() == k


def test_largest_survives_a_sample_that_misleads() -> None:
    n = 1 << 18
    stride = n // 16384 | 1
    for inside, outside in ((9.0, 1.0), (1.0, 9.0), (0.0, 5.0)):
        x = outside + torch.arange(n) / n
        x[stride // 2 :: stride] = inside + torch.arange(len(x[stride // 2 :: stride])) / n
        for k in (10, 2000, n // 32, n // 17, n // 4, n // 2, n - 5):
            assert torch.equal(sparse.largest(x, k), reference.largest(x, k))


def test_largest_takes_the_first_among_equals() -> None:
    assert sparse.largest(torch.tensor([1.0, -2.0, 2.0, 2.0, 0.0]), 2).tolist() == [1, 2]


@pytest.mark.parametrize("k", [-1, 4])
def test_largest_refuses_impossible_counts(k: int) -> None:
    with pytest.raises(CodecError, match="0 to 3"):
        sparse.largest(torch.zeros(3), k)


@pytest.mark.parametrize("x", [torch.zeros(3, dtype=torch.float64), torch.zeros(3, 3)])
def test_selection_refuses_what_is_not_flat_float32(x: Tensor) -> None:
    with pytest.raises(CodecError, match="flat float32"):
        sparse.largest(x, 1)
    with pytest.raises(CodecError, match="flat float32"):
        sparse.above(x, 1)


def test_selection_accepts_strided_views() -> None:
    x = torch.randn(301, generator=torch.Generator().manual_seed(1))
    assert torch.equal(sparse.largest(x[::3], 20), sparse.largest(x[::3].contiguous(), 20))
    assert torch.equal(sparse.above(x[::3], 0.5), sparse.above(x[::3].contiguous(), 0.5))


@pytest.mark.parametrize("n", LENGTHS)
def test_above_is_the_comparison(n: int) -> None:
    for x in draws(n, n + 1):
        for value in (-1.0, -0.0, 0.0, 0.1, 1.0, 3.0, 1e30, 1e300, math.inf, math.nan):
            expected = [i for i, v in enumerate(x.tolist()) if not abs(v) <= torch.tensor(value).item()]
            assert sparse.above(x, value).tolist() == expected
            assert reference.above(x, value).tolist() == expected


def test_above_on_long_data() -> None:
    for x in adversarial(200_001).values():
        for value in (0.0, 0.25, 1.0, 2.5):
            assert torch.equal(sparse.above(x, value), reference.above(x, value))


@given(st.integers(0, 300), st.integers(1, 3), st.integers(0, 2**31))
def test_scatter_add_adds_where_it_is_told(n: int, group: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    out = torch.randn(n * group, generator=g)
    indices = (torch.rand(n, generator=g) < 0.3).nonzero().view(-1)
    values = torch.randn(indices.numel() * group, generator=g)
    expected = out.clone()
    expected.view(n, group)[indices] += values.view(-1, group)
    mirrored = out.clone()
    reference.scatter_add(mirrored, indices, values, group)
    sparse.scatter_add(out, indices, values, group)
    assert torch.equal(out, expected)
    assert torch.equal(mirrored, expected)


@pytest.mark.parametrize("indices", [[0, 3], [-1, 0], [0, 1, 2]])
def test_scatter_add_refuses_positions_outside_and_changes_nothing(indices: list[int]) -> None:
    for add in (sparse.scatter_add, reference.scatter_add):
        out = torch.zeros(3)
        with pytest.raises(CodecError, match="position inside"):
            add(out, torch.tensor(indices), torch.ones(2))
        assert torch.equal(out, torch.zeros(3))


@pytest.mark.parametrize("n", [0, 1, 7, 8, 1023, 1024, 1025, 5000, 1_100_003])
def test_scatter_is_a_copy_and_an_addition(n: int) -> None:
    g = torch.Generator().manual_seed(n)
    given = torch.randn(n, generator=g)
    ascending = (torch.rand(n, generator=g) < 0.1).nonzero().view(-1)
    for indices in (ascending, ascending.flip(0), torch.arange(n), ascending[:0]):
        values = torch.randn(indices.numel(), generator=g)
        for before in (None, given):
            expected = torch.zeros(n) if before is None else before.clone()
            expected[indices] += values
            for scatter in (sparse.scatter, reference.scatter):
                out = torch.full((n + 1,), torch.nan)
                scatter(before, indices, values, out[:n])
                assert same(out[:n], expected)
                scatter(before, indices, values, out[1:])  # at an address that is no multiple of a register
                assert same(out[1:], expected)


@pytest.mark.parametrize("indices", [[0, 3], [-1, 0], [0, 1, 2], [1, 5], [3, 0]])
def test_scatter_refuses_what_does_not_fit(indices: list[int]) -> None:
    for scatter in (sparse.scatter, reference.scatter):
        with pytest.raises(CodecError, match="position inside"):
            scatter(None, torch.tensor(indices), torch.ones(2), torch.zeros(3))
    with pytest.raises(CodecError, match="must have this shape"):
        sparse.scatter(torch.zeros(4), torch.tensor([0]), torch.ones(1), torch.zeros(3))


@given(st.sets(st.integers(0, 80)), st.sets(st.integers(0, 80)))
def test_a_union_has_every_position_once(a: set[int], b: set[int]) -> None:
    parts = [torch.tensor(sorted(part), dtype=torch.int64) for part in (a, b)]
    for union in (sparse.union, reference.union):
        assert union(*parts).tolist() == sorted(a | b)


@given(n=st.integers(0, 10_000), group=st.sampled_from([1, 2, 3]), density=st.floats(0, 1), seed=st.integers(0, 2**31))
@settings(deadline=None)
def test_what_is_gathered_goes_back_between_zeros(n: int, group: int, density: float, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n * group + seed % group, generator=g) + 0.5  # none is zero
    indices = (torch.rand(n, generator=g) < density).nonzero().view(-1)
    values, expected = torch.empty(indices.numel() * group), torch.empty(indices.numel() * group)
    sparse.gather(x, indices, values, group)
    reference.gather(x, indices, expected, group)
    assert torch.equal(values, expected)
    out, mirrored = torch.full_like(x, 7.0), torch.full_like(x, 7.0)
    for before in (None, torch.randn(x.numel(), generator=g)):
        sparse.scatter(before, indices, values, out, group)
        reference.scatter(before, indices, values, mirrored, group)
        assert torch.equal(out, mirrored)
        assert before is not None or int((out != 0).sum()) == indices.numel() * group


@pytest.mark.parametrize("indices", [[-1], [5], [2**40]])
def test_gather_and_scatter_refuse_positions_outside(indices: list[int]) -> None:
    x, values, at = torch.ones(10), torch.ones(2), torch.tensor(indices)
    for kernels in (sparse, reference):
        with pytest.raises(CodecError, match="position inside the tensor"):
            kernels.gather(x, at, values, 2)
        with pytest.raises(CodecError, match="position inside the tensor"):
            kernels.scatter(None, at, values, x, 2)
    assert torch.equal(x, torch.ones(10))


@pytest.mark.parametrize("scale", [1.0, 2.0**-44, 2.0**-46, 2.0**-80, 1e18, 1e20, 0.0])
def test_squared_lengths_are_the_references_and_know_their_limits(scale: float) -> None:
    for n in LENGTHS:
        for x in draws(2 * n, n)[:2]:
            ours, theirs = torch.empty(n), torch.empty(n)
            usable = sparse.squared_lengths(x * scale, ours)
            assert usable == reference.squared_lengths(x * scale, theirs)
            assert torch.equal(ours, theirs)
            largest = float(torch.hypot(x[0::2], x[1::2]).max()) * scale if n else 0.0
            assert usable == (2.0**-45 < largest < 1.8e19)
    for bad in (math.nan, math.inf):
        assert not sparse.squared_lengths(torch.tensor([1.0, 2.0, bad, 0.0]), torch.empty(2))


@given(n=st.integers(0, 600), chunk=st.integers(2, 130), density=st.floats(0, 1), seed=st.integers(0, 999))
@settings(deadline=None)
def test_the_largest_of_chunks_are_those_of_each_chunk_alone(n: int, chunk: int, density: float, seed: int) -> None:
    each, rest = math.ceil(density * chunk), math.ceil(density * (n % chunk))
    for x in draws(n, seed):
        expected = [
            low + i
            for low in range(0, n, chunk)
            for i in by_sorting(x[low : low + chunk], each if n - low >= chunk else rest)
        ]
        assert sparse.largest_in_chunks(x, chunk, each, rest).tolist() == expected
        assert reference.largest_in_chunks(x, chunk, each, rest).tolist() == expected


@pytest.mark.parametrize("name", list(adversarial(64)))
def test_the_largest_of_long_chunks_survive_adversarial_data(name: str) -> None:
    x = adversarial(50_000)[name]
    for each in (1, 64, 300, 2000, 4095):
        chosen = sparse.largest_in_chunks(x, 4096, each, 10)
        assert torch.equal(chosen, reference.largest_in_chunks(x, 4096, each, 10))


@pytest.mark.parametrize(("each", "rest"), [(9, 0), (1, 3), (-1, 0)])
def test_impossible_counts_of_chunks_are_refused(each: int, rest: int) -> None:
    with pytest.raises(CodecError, match="Cannot choose"):
        sparse.largest_in_chunks(torch.zeros(18), 8, each, rest)
