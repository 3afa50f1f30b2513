"""Laws of PowerSGD."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from thinwire import Codec, Slot, StateError, StepInfo, simulate
from thinwire.core.average import average
from thinwire.core.coalesced import coalesced
from thinwire.stages.lowrank import PowerSGD, orthonormal, unit_rows
from thinwire.worlds.simulated import run


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def low_rank(rows: int, columns: int, rank: int, seed: int) -> Tensor:
    return drawn(rows, rank, seed=seed) @ drawn(rank, columns, seed=seed + 1)


def error(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(24, 60),
    columns=st.integers(24, 60),
    rank=st.integers(1, 3),
    ranks=st.integers(1, 4),
    seed=st.integers(0, 10**5),
    scale=st.sampled_from([1e-18, 1.0, 1e15]),
)
def test_a_sum_of_low_rank_is_returned_exactly_at_the_first_step(
    rows: int, columns: int, rank: int, ranks: int, seed: int, scale: float
) -> None:
    """The ranks' own matrices are of full rank; only their sum is not."""
    wanted = low_rank(rows, columns, rank, seed) * scale
    noise = [drawn(rows, columns, seed=seed + 10 + r) * scale for r in range(ranks - 1)]
    gradients = [wanted * ranks - sum(noise, torch.zeros(1)), *noise]
    outcome = simulate(PowerSGD(rank=3), gradients)
    assert all(torch.equal(mean, outcome.means[0]) for mean in outcome.means)
    assert error(outcome.means[0], wanted) < 1e-4


def test_what_is_given_is_delivered_or_held() -> None:
    slots, total, delivered = None, torch.zeros(30, 40), torch.zeros(30, 40)
    for step in range(10):
        gradients = [drawn(30, 40, seed=100 * step + r) for r in range(3)]
        outcome = simulate("powersgd(rank=2, warmup=2)", gradients, slots=slots, step=step)
        slots = outcome.slots
        total += torch.stack(gradients).mean(0)
        delivered += outcome.means[0]
    assert slots is not None
    held = sum(s.residual for s in slots if s.residual is not None)
    torch.testing.assert_close(delivered + held.view(30, 40), total, atol=1e-3, rtol=1e-3)  # type: ignore[union-attr]


def test_encoding_is_linear() -> None:
    """Each rank's delivered part is the projection of its own matrix, and the parts add up to the result."""
    gradients = [drawn(32, 48, seed=r) for r in range(3)]
    outcome = simulate(PowerSGD(rank=2), gradients)
    held = [slot.residual.view(32, 48) for slot in outcome.slots if slot.residual is not None]
    parts = [gradient / 3 - kept for gradient, kept in zip(gradients, held, strict=True)]
    torch.testing.assert_close(torch.stack(parts).sum(0), outcome.means[0], atol=1e-5, rtol=1e-4)
    assert all(int(torch.linalg.matrix_rank(part, rtol=1e-4)) == 2 for part in parts)


def test_warm_start_approaches_the_best_approximation() -> None:
    matrix = drawn(60, 60, seed=0) + 4 * low_rank(60, 60, 2, 1)
    u, s, v = torch.linalg.svd(matrix)
    best = error(u[:, :2] * s[:2] @ v[:2], matrix)
    errors, slots = [], None
    for step in range(8):
        outcome = simulate("feedback(keep=off) | powersgd(rank=2)", [matrix], slots=slots, step=step)
        slots = outcome.slots
        errors.append(error(outcome.means[0], matrix))
    assert errors[-1] < best * 1.001
    assert errors[0] > errors[1] > best * 0.999


def test_zero_gradients_stay_zero_and_do_not_spoil_what_follows() -> None:
    codec, slots = Codec.parse("powersgd(rank=2)"), None
    for step in range(3):
        outcome = simulate(codec, [torch.zeros(24, 24)] * 2, slots=slots, step=step)
        slots = outcome.slots
        assert torch.equal(outcome.means[0], torch.zeros(24, 24))
    wanted = low_rank(24, 24, 2, 5)
    assert error(simulate(codec, [wanted] * 2, slots=slots, step=3).means[0], wanted) < 1e-4


def test_a_rank_that_grows_is_followed_at_once() -> None:
    """Directions that a step of rank one leaves empty are drawn anew."""
    codec = Codec.parse("powersgd(rank=3)")
    slots = simulate(codec, [low_rank(40, 40, 1, 0)] * 2).slots
    wanted = low_rank(40, 40, 3, 7)
    assert error(simulate(codec, [wanted] * 2, slots=slots, step=1).means[0], wanted) < 1e-3


def test_cancelling_ranks_give_zero() -> None:
    matrix = drawn(24, 24, seed=0)
    means = simulate(PowerSGD(rank=2), [matrix, -matrix]).means
    assert torch.equal(means[0], means[1])
    assert float(means[0].abs().max()) < 1e-6


def test_tensors_of_one_shape_keep_their_own_factors() -> None:
    """Two layers averaged in the same collectives equal two layers averaged alone."""
    codec = Codec.parse("powersgd(rank=1)")
    layers = [[drawn(16, 16, seed=10 * layer + r) for r in range(2)] for layer in range(2)]
    shared = [[Slot(), Slot()] for _ in range(2)]
    alone: list[list[Slot] | None] = [None, None]
    for step in range(4):
        steps = [StepInfo(rank, 2, 0, step) for rank in range(2)]
        means, _ = run(
            [coalesced([average(codec, layers[i][r], shared[r][i], steps[r]) for i in range(2)]) for r in range(2)]
        )
        for i in range(2):
            outcome = simulate(codec, layers[i], slots=alone[i], step=step)
            alone[i] = outcome.slots
            assert torch.equal(means[0][i], outcome.means[0])
            assert torch.equal(means[1][i], outcome.means[0])
    assert not torch.equal(shared[0][0].states[0]["q"], shared[0][1].states[0]["q"])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_number_reaches_every_rank_and_changes_no_state(bad: float) -> None:
    codec = Codec.parse("powersgd(rank=2)")
    slots = simulate(codec, [drawn(24, 24, seed=r) for r in range(3)]).slots
    before = [slot.state_dict()["states"] for slot in slots]
    gradients = [drawn(24, 24, seed=r) for r in range(3)]
    gradients[1][3, 3] = bad
    outcome = simulate(codec, gradients, slots=slots, step=1)
    assert not any(bool(torch.isfinite(mean).all()) for mean in outcome.means)
    for slot, states in zip(slots, before, strict=True):
        assert torch.equal(slot.states[0]["q"], states[0]["q"])
        assert slot.states[0]["steps"] == states[0]["steps"] == 1


@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 3), (0, 5), (64, 1), (1, 64), (4, 4, 2)])
def test_what_does_not_fit_travels_plain(shape: tuple[int, ...]) -> None:
    codec, gradients = Codec.parse("powersgd(rank=2)"), [torch.full(shape, float(r)) for r in range(3)]
    outcome = simulate(codec, gradients)
    assert torch.equal(outcome.means[0], torch.ones(shape))
    assert outcome.sent == simulate("none", gradients).sent
    assert outcome.sent == [codec.wire_bytes(shape, 3)] * 3


def test_sizes_are_exact_before_and_after_the_warm_up() -> None:
    codec, slots = Codec.parse("powersgd(rank=2, warmup=2)"), None
    sent = []
    for step in range(3):
        outcome = simulate(codec, [drawn(20, 6, 5, seed=r) for r in range(3)], slots=slots, step=step)
        slots = outcome.slots
        sent.append(outcome.sent[0])
    size = codec.wire_bytes((20, 6, 5), 3)
    assert size.exact
    assert sent == [Codec().wire_bytes(600, 3)] * 2 + [size]
    assert size == 2 * 2 * 4 * (-(-40 // 3) + -(-60 // 3))


@pytest.mark.parametrize("cut", [1, 2, 4])
def test_saved_state_continues_bit_for_bit(cut: int) -> None:
    codec, slots = Codec.parse("powersgd(rank=2, warmup=2)"), None
    for step in range(cut):
        slots = simulate(codec, [drawn(20, 20, seed=step)] * 2, slots=slots, step=step).slots
    assert slots is not None
    saved = [Slot.from_state_dict(slot.state_dict()) for slot in slots]
    for step in range(cut, 6):
        gradients = [drawn(20, 20, seed=step + 9 * r) for r in range(2)]
        straight = simulate(codec, gradients, slots=slots, step=step)
        resumed = simulate(codec, gradients, slots=saved, step=step)
        assert torch.equal(straight.means[0], resumed.means[0])


@pytest.mark.parametrize("tail", ["qsgd(bits=4)", "integers(bits=8)", "fp16"])
def test_the_second_factor_can_travel_in_fewer_bits(tail: str) -> None:
    wanted = low_rank(32, 32, 1, 0)
    outcome = simulate(f"powersgd(rank=1) | {tail}", [wanted] * 3)
    assert all(torch.equal(mean, outcome.means[0]) for mean in outcome.means)
    assert error(outcome.means[0], wanted) < 0.3


@pytest.mark.parametrize(
    "matrix", [torch.zeros(9, 3), torch.ones(9, 3), torch.eye(9)[:, :3] * 1e-38, torch.ones(9, 3) * 1e38]
)
def test_orthonormal_of_anything(matrix: Tensor) -> None:
    basis = orthonormal(matrix)
    torch.testing.assert_close(basis.T @ basis, torch.eye(3), atol=1e-5, rtol=0)
    scaled = matrix / max(float(matrix.abs().max()), 1e-45)
    torch.testing.assert_close(basis @ (basis.T @ scaled), scaled, atol=1e-5, rtol=0)


def test_negligible_directions_are_replaced() -> None:
    matrix, instead = torch.tensor([[3.0, 4.0], [1e-9, 0.0]]), torch.tensor([[0.0, 0.0], [0.0, 2.0]])
    assert torch.equal(unit_rows(matrix, lambda: instead), torch.tensor([[0.6, 0.8], [0.0, 1.0]]))


def test_factors_of_another_shape_are_refused() -> None:
    slots = simulate("powersgd(rank=2)", [drawn(20, 30, seed=r) for r in range(2)]).slots
    slots[1].states[0]["q"] = slots[1].states[0]["q"].T.contiguous()
    with pytest.raises(
        StateError, match=r"rank 1 is damaged: .q. of powersgd\(rank=2\) must be .* \(2, 30\); got .* \(30, 2\)"
    ):
        simulate("powersgd(rank=2)", [drawn(20, 30, seed=r) for r in range(2)], slots=slots, step=1)
