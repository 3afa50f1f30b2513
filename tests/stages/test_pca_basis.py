"""The laws of one PCA: layouts that lose nothing, an orthonormal basis, and a linear code."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.stages.pca_gradients import SHAPE, draw, low_rank, state_of
from thinwire import Codec, Slot, simulate
from thinwire.core.context import Context, State
from thinwire.core.spec import Spec
from thinwire.core.stage import Encoded
from thinwire.stages.pca import PCA
from thinwire.stages.pca_basis import Basis, lay_out
from thinwire.stages.pca_samples import decompose, start_sampling, take_sample

# Layouts.


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(1, 9), min_size=2, max_size=4),
    order=st.sampled_from(["rows", "filters"]),
    length=st.none() | st.integers(2, 40),
)
def test_slices_and_back_is_the_identity(shape: list[int], order: str, length: int | None) -> None:
    layout = lay_out(tuple(shape), order, length, 10, True)
    if layout is None:
        assert math.prod(shape) < 4 or length is None or math.prod(shape) <= length or min(shape) == 1
        return
    x = torch.arange(float(layout.numel))
    rows = layout.rows(x)
    assert rows.shape == (layout.count, layout.length)
    assert torch.equal(layout.flat(rows), x)
    assert layout.count >= 2


def test_the_filter_index_runs_fastest_in_the_papers_order() -> None:
    layout = lay_out((16, 16, 3, 3), "filters", 768, 100, False)
    assert layout is not None
    assert layout.count == 3
    weights = torch.arange(16.0 * 16 * 9).view(16, 16, 3, 3)
    rows = layout.rows(weights.reshape(-1))
    assert torch.equal(rows[1, :16], weights[:, 0, 1, 0])  # all filters of one input value are neighbours
    assert torch.equal(rows[2, 16:32], weights[:, 1, 2, 0])


def test_rows_are_views() -> None:
    layout = lay_out(SHAPE, "rows", None, 10, True)
    assert layout is not None
    x = torch.zeros(layout.numel)
    assert layout.in_place
    assert layout.rows(x).data_ptr() == x.data_ptr()


@pytest.mark.parametrize("shape", [(64, 64, 3, 3), (10, 3136), (512, 512, 3, 3), (4096, 4096), (2, 50_000)])
def test_statistics_never_take_more_than_a_few_layers(shape: tuple[int, ...]) -> None:
    layout = lay_out(shape, "rows", None, 50, True)
    assert layout is not None
    assert min(layout.length, 50 * layout.count) * layout.length <= 16 * layout.numel
    assert layout.length <= 1024


@pytest.mark.parametrize("shape", [(), (0,), (7,), (1, 5), (3, 1), (40_000,), (0, 4), (4, 0, 3)])
def test_layers_that_do_not_fit_always_travel_as_they_are(shape: tuple[int, ...]) -> None:
    slots: list[Slot] | None = None
    for step in range(6):
        gradients = [torch.randn(shape, generator=draw(10 * step + r)) for r in range(2)]
        outcome = simulate("pca(warmup=0, sample=2, reuse=2)", gradients, slots=slots, step=step)
        slots = outcome.slots
        torch.testing.assert_close(outcome.means[0], (gradients[0] + gradients[1]) / 2)
    assert Codec.parse("pca").wire_bytes(shape, 2) == Codec().wire_bytes(shape, 2)


# The basis.


def learnt(pca: PCA, samples: list[Tensor], shape: tuple[int, ...] = SHAPE) -> tuple[Tensor | None, State]:
    layout = pca.layout(Spec.of(shape))
    assert layout is not None
    state: State = {}
    start_sampling(state)
    for x in samples:
        take_sample(state, [layout.rows(x.reshape(-1))], len(samples), pca.pool, pca.centre, True)
    return decompose(state, pca.pool, None if pca.ratio is None else pca.kept(layout), pca.energy), state


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    energy=st.floats(0.001, 0.6),
    pool=st.booleans(),
    centre=st.booleans(),
    order=st.sampled_from(["rows", "filters"]),
    scale=st.sampled_from([1e-30, 1e-6, 1.0, 1e15]),
)
def test_energy_kept_on_the_samples(
    seed: int, energy: float, pool: bool, centre: bool, order: str, scale: float
) -> None:
    pca = PCA(energy=energy, sample=9, pool=pool, centre=centre, order=order)
    samples = [scale * (x + 0.5) for step in range(9) for x in low_rank(1, seed + step, rank=4, noise=0.3)]
    columns, _ = learnt(pca, samples)
    if columns is None:
        return
    layout = pca.layout(Spec.of(SHAPE))
    assert layout is not None
    d = columns.shape[1]
    assert 1 <= d <= min(layout.length // 2, (9 - centre) * (layout.count if pool else 1))
    torch.testing.assert_close(columns.t() @ columns, torch.eye(d), atol=1e-5, rtol=0)
    rows = torch.stack([layout.rows(x.reshape(-1)) for x in samples]).double() / scale
    rows = rows if pool else rows[:, :1]
    rows = rows - rows.mean(0) if centre else rows
    kept = (rows @ columns.double()).square().sum() / rows.square().sum()
    assert kept >= 1 - energy - 1e-4


@pytest.mark.parametrize("order", ["rows", "filters"])
@pytest.mark.parametrize("rank", [1, 2, 5])
def test_low_rank_gradients_recover_their_rank(order: str, rank: int) -> None:
    pca = PCA(energy=0.01, sample=12, order=order, slice=72)
    space = torch.randn(rank, 72, generator=draw(5))
    g = draw(6)
    layout = pca.layout(Spec.of(SHAPE))
    assert layout is not None
    samples = [
        layout.flat(torch.randn(16, rank, generator=g) @ space + 0.01 * torch.randn(16, 72, generator=g))
        for _ in range(12)
    ]
    columns, _ = learnt(pca, samples)
    assert columns is not None
    assert columns.shape[1] == rank


@pytest.mark.parametrize("pool", [True, False])
def test_a_basis_has_fewer_columns_than_samples(pool: bool) -> None:
    pca = PCA(ratio=2, sample=3, pool=pool, slice=144)
    samples = [torch.randn(SHAPE, generator=draw(i)) for i in range(3)]
    columns, _ = learnt(pca, samples)
    assert columns is not None
    assert columns.shape[1] <= (3 * 8 if pool else 3) - 1


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_gradients_that_never_change_stay_plain_for_a_period(value: float) -> None:
    slots = None
    sent = []
    for step in range(12):
        outcome = simulate("pca(warmup=0, sample=3, reuse=4)", [torch.full(SHAPE, value)] * 2, slots=slots, step=step)
        slots = outcome.slots
        assert torch.equal(outcome.means[0], torch.full(SHAPE, value))
        sent.append(min(outcome.sent))
    assert set(sent[:3] + sent[4:7]) == {int(Codec().wire_bytes(SHAPE, 2))}
    assert "basis" not in state_of(outcome.slots[0])


# Encoding.


def agreed(pca: PCA, seed: int, ranks: int) -> Context:
    """A ctx with a basis and a mean, as after sampling."""
    samples = [x + 0.2 for step in range(9) for x in low_rank(1, seed + step)]
    columns, state = learnt(pca, samples)
    assert columns is not None
    mean = state["sum"] / state["taken"] if pca.centre else None
    basis = Basis(columns, mean, None if mean is None else mean @ columns)
    return Context(Spec.of(SHAPE), {}, ranks=ranks, shared=basis)


def decoded(pca: PCA, y: Tensor, ctx: Context, contributions: int) -> Tensor:
    ctx.contributions = contributions
    out = torch.full((ctx.spec.numel,), float("nan"))
    pca.decode(Encoded(y), ctx, out)
    twice = out.clone()
    pca.decode(Encoded(y), ctx, twice, "add")
    torch.testing.assert_close(twice, 2 * out)
    pca.decode(Encoded(y), ctx, twice, "subtract")
    torch.testing.assert_close(twice, out)
    return out


forms = st.builds(
    PCA,
    ratio=st.sampled_from([2, 4, 8.5]),
    sample=st.just(9),
    order=st.sampled_from(["rows", "filters"]),
    pool=st.booleans(),
    centre=st.booleans(),
    slice=st.none() | st.sampled_from([24, 70]),
)
unpadded = forms.filter(lambda pca: pca.slice != 70)  # what falls into the padding is lost


@settings(max_examples=40, deadline=None)
@given(pca=forms, ranks=st.integers(1, 5), seed=st.integers(0, 1000))
def test_the_sum_of_codes_is_the_code_of_the_sum(pca: PCA, ranks: int, seed: int) -> None:
    ctx = agreed(pca, seed, ranks)
    shares = [x.reshape(-1) / ranks for x in low_rank(ranks, seed, noise=1.0)]
    codes = [pca.encode(x, ctx).values for x in shares]
    together = decoded(pca, torch.stack(codes).sum(0), ctx, ranks)
    apart = torch.stack([decoded(pca, code, ctx, 1) for code in codes]).sum(0)
    torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-4)
    whole = Context(ctx.spec, {}, ranks=1, shared=ctx.shared)
    alone = decoded(pca, pca.encode(torch.stack(shares).sum(0), whole).values, whole, 1)
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(pca=unpadded, seed=st.integers(0, 1000))
def test_decoding_is_a_projection(pca: PCA, seed: int) -> None:
    ctx = agreed(pca, seed, 1)
    x = low_rank(1, seed, noise=1.0)[0].reshape(-1)
    once = decoded(pca, pca.encode(x, ctx).values, ctx, 1)
    again = decoded(pca, pca.encode(once, ctx).values, ctx, 1)
    torch.testing.assert_close(again, once, rtol=1e-4, atol=1e-4)
    layout = pca.layout(ctx.spec)
    assert layout is not None
    missing = layout.rows(x - once)
    assert float((missing @ ctx.shared.columns).abs().max()) < 1e-4 * float(x.norm())
