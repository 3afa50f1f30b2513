"""What samples decide: the layout of a layer's slices, and how many coefficients steps need that were not sampled."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.stages.pca_gradients import draw, state_of
from thinwire import Codec, Slot, WireError, simulate
from thinwire.core.context import State
from thinwire.core.spec import Spec
from thinwire.stages.pca import PCA
from thinwire.stages.pca_basis import Layout, layouts
from thinwire.stages.pca_checks import check_received
from thinwire.stages.pca_samples import Learnt, learn, start_sampling, take_sample

MATRIX = (32, 24)


def in_space(shape: tuple[int, int], order: str, rank: int, step: int, noise: float = 0.05) -> Tensor:
    """A matrix whose rows, or columns, lie near one space, the same at all steps."""
    length = shape[1] if order == "rows" else shape[0]
    count = math.prod(shape) // length
    space = torch.randn(rank, length, generator=draw(7))
    g = draw(5000 + step)
    rows = torch.randn(count, rank, generator=g) @ space + noise * torch.randn(count, length, generator=g)
    return rows if order == "rows" else rows.t().contiguous()


def sampled(pca: PCA, steps: list[Tensor]) -> tuple[State, tuple[Layout, ...]]:
    possible, state = pca.layouts(Spec.of(tuple(steps[0].shape))), State()
    start_sampling(state)
    for x in steps:
        rows = [layout.rows(x.reshape(-1)) for layout in possible]
        take_sample(state, rows, len(steps), pca.pool, pca.centre, True, pca.tries)
    return state, possible


def learnt(pca: PCA, steps: list[Tensor]) -> Learnt | None:
    state, possible = sampled(pca, steps)
    kept = None if pca.ratio is None else [pca.kept(layout) for layout in possible]
    return learn(state, possible, pca.pool, len(steps), kept, pca.energy)


def naive_losses(pca: PCA, layout: Layout, steps: list[Tensor]) -> Tensor:
    """Of the second half of the steps, with each number of directions of the first half, in fp64."""
    rows = torch.stack([layout.rows(x.reshape(-1)) for x in steps]).double()
    rows = rows if pca.pool else rows[:, :1]
    early = len(steps) // 2
    rows = rows - rows[:early].mean(0) if pca.centre else rows
    first, second = rows[:early].flatten(0, 1), rows[early:].flatten(0, 1)
    directions = torch.linalg.svd(first, full_matrices=False)[2]
    lost = [
        float((second - second @ directions[:d].t() @ directions[:d]).square().sum() / second.square().sum())
        for d in range(1, len(directions) + 1)
    ]
    return torch.tensor(lost)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    ranks=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    mix=st.floats(0.0, 1.0),
    pool=st.booleans(),
    centre=st.booleans(),
    scale=st.sampled_from([1e-30, 1.0, 1e15]),
)
def test_the_layout_is_the_one_that_loses_least_of_the_second_half(
    seed: int, ranks: tuple[int, int], mix: float, pool: bool, centre: bool, scale: float
) -> None:
    pca = PCA(ratio=4, sample=8, order="auto", pool=pool, centre=centre)
    steps = [
        scale * (mix * in_space(MATRIX, "rows", ranks[0], seed + i, 0.3) + (1 - mix) * in_space(MATRIX, "filters",
        ranks[1], seed + i, 0.3)) for i in range(8)
    ]  # fmt: skip
    found = learnt(pca, steps)
    assert found is not None
    possible = pca.layouts(Spec.of(MATRIX))
    assert [layout.order for layout in possible] == ["rows", "filters"]
    curves = [naive_losses(pca, layout, steps) for layout in possible]
    lost = [float(c[min(pca.kept(each), len(c)) - 1]) for c, each in zip(curves, possible, strict=True)]
    assert lost[found.layout] <= min(lost) * 1.001 + 1e-6
    columns = found.columns
    torch.testing.assert_close(columns.t() @ columns, torch.eye(columns.shape[1]), atol=1e-5, rtol=0)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), energy=st.floats(0.02, 0.5), order=st.sampled_from(["rows", "filters", "auto"]))
def test_energy_takes_the_fewest_columns_that_keep_half_of_it_on_the_second_half(
    seed: int, energy: float, order: str
) -> None:
    pca = PCA(energy=energy, sample=8, order=order)
    steps = [in_space(MATRIX, "filters", 3, seed + i, 0.5) for i in range(8)]
    found = learnt(pca, steps)
    possible = pca.layouts(Spec.of(MATRIX))
    needed = {}
    for at, layout in enumerate(possible):
        enough = (naive_losses(pca, layout, steps) <= energy / 2 + 1e-6).nonzero()
        if len(enough) and 2 * (int(enough[0]) + 1) <= layout.length:
            needed[at] = (int(enough[0]) + 1) * layout.count
    if found is None:
        assert not needed or min(needed.values()) > 0.45 * math.prod(MATRIX)  # the last column may be one of rounding
        return
    assert found.columns.shape[1] * possible[found.layout].count >= min(needed.values())
    assert found.columns.shape[1] <= needed[found.layout] // possible[found.layout].count + 1


@pytest.mark.parametrize("energy", [0.05, 0.1, 0.3])
def test_energy_keeps_its_promise_on_steps_that_were_not_sampled(energy: float) -> None:
    """Low-rank gradients with much noise: the samples alone would promise it with too few columns."""
    shape, pca = (12, 48), PCA(energy=energy, sample=10, slice=48)
    alone = PCA(energy=energy, sample=10, slice=48, pool=True)
    steps = [in_space(shape, "rows", 8, i, 0.15) for i in range(60)]
    state, possible = sampled(pca, steps[:10])
    unseen = torch.cat([possible[0].rows(x.reshape(-1)) for x in steps[10:]])

    def lost(columns: Tensor) -> float:
        return float((unseen - unseen @ columns @ columns.t()).square().sum() / unseen.square().sum())

    found, of_samples = learn(state, possible, True, 10, None, energy), learn(state, possible, True, 0, None, energy)
    assert found is not None
    assert of_samples is not None
    assert lost(found.columns) <= energy
    assert found.columns.shape[1] >= of_samples.columns.shape[1]
    assert alone.tries


@pytest.mark.parametrize("order", ["rows", "filters"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_all_ranks_use_the_layout_that_the_samples_are_of(order: str, ranks: int) -> None:
    codec, slots = Codec.parse("pca(ratio=4, warmup=1, sample=8, reuse=6, order=auto)"), None
    for step in range(14):
        gradients = [in_space(MATRIX, order, 3, 100 * step + rank) for rank in range(ranks)]
        outcome = simulate(codec, gradients, slots=slots, step=step)
        slots = outcome.slots
        assert all(torch.equal(mean, outcome.means[0]) for mean in outcome.means)
    for slot in slots or []:
        assert state_of(slot)["layout"] == ("rows", "filters").index(order)
        (said,) = slot.decided(codec)
        length = MATRIX[1] if order == "rows" else MATRIX[0]
        assert said == f"pca: {length // 4} coefficients for each {length} elements in the order {order}"
    mean = torch.stack(gradients).mean(0)
    assert float((outcome.means[0] - mean).norm() / mean.norm()) < 0.6


def test_a_layer_that_needs_too_many_coefficients_takes_the_detour_and_says_so() -> None:
    codec = Codec.parse("pca(energy=0.05, warmup=0, sample=8, reuse=5, travel='qsgd(bits=8)')")
    slots, sent = None, []
    for step in range(13):
        gradients = [torch.randn(MATRIX, generator=draw(50 * step + rank)) for rank in range(2)]
        outcome = simulate(codec, gradients, slots=slots, step=step)
        slots = outcome.slots
        sent.append(outcome.sent[0])
        if 8 <= step < 13:
            (said,) = slots[0].decided(codec)
            assert "half the coefficients" in said
            assert "travels through qsgd(bits=8)" in said
            assert slots[0].notes.get("without_basis", 0.0) == float(step > 8)  # the step in which it was decided
    detour = int(Codec.parse("qsgd(bits=8)").wire_bytes(math.prod(MATRIX), 2))
    assert sent[9:13] == [detour] * 4


def test_samples_of_a_version_without_halves_still_give_a_basis() -> None:
    codec = Codec.parse("pca(energy=0.2, warmup=0, sample=8, reuse=6)")
    slots: list[Slot] | None = None
    for step in range(10):
        gradients = [in_space(MATRIX, "rows", 3, 100 * step + rank) for rank in range(2)]
        slots = simulate(codec, gradients, slots=slots, step=step).slots
        if step == 6:
            for slot in slots:
                for key in ("early_gram", "early_sum"):
                    state_of(slot).pop(key, None)
    assert all("basis" in state_of(slot) for slot in slots or [])


@pytest.mark.parametrize(("kept", "at"), [(-1, 0), (13, 0), (4, 2), (4, -1), (2**31 - 1, 1)])
def test_a_basis_that_does_not_fit_is_an_error_with_its_rank(kept: int, at: int) -> None:
    with pytest.raises(WireError, match=r"rank 3 .*does not fit the layer"):
        check_received(3, kept, at, layouts(MATRIX, "auto", None, 8, True))
