"""Squares of the cosine transform, the preset `demo`, and PowerSGD in one round."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import thinwire
from thinwire.core.context import Context
from thinwire.core.spec import Spec
from thinwire.core.stage import Encoded


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def turned(x: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """Coefficients, and what they decode to."""
    stage, ctx = thinwire.DCT(chunk, dims=2), Context(Spec.of(tuple(x.shape)), {})
    y = stage.encode(x.reshape(-1), ctx).values
    stage.decode(Encoded(y), ctx, back := torch.empty(x.numel()))
    return y, back.view(x.shape)


def cosines(n: int) -> Tensor:
    """The matrix of the orthonormal DCT-II."""
    j, k = torch.arange(n).double(), torch.arange(n).double().view(-1, 1)
    matrix = torch.cos(math.pi * (2 * j + 1) * k / (2 * n)) * math.sqrt(2 / n)
    matrix[0] /= math.sqrt(2)
    return matrix


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from([2, 4, 8, 16]), st.integers(0, 999))
@settings(deadline=None)
def test_squares_keep_lengths_and_come_back(rows: int, columns: int, chunk: int, seed: int) -> None:
    x = drawn(rows, columns, seed=seed)
    y, back = turned(x, chunk)
    torch.testing.assert_close(back, x, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(y.norm(), x.norm(), atol=1e-4, rtol=1e-5)


def test_each_square_is_the_cosine_transform_of_its_rows_and_columns() -> None:
    x = drawn(16, 24)
    y, _ = turned(x, 8)
    for at, (top, left) in enumerate((top, left) for top in (0, 8) for left in (0, 8, 16)):
        wanted = cosines(8) @ x[top : top + 8, left : left + 8].double() @ cosines(8).T
        torch.testing.assert_close(y[64 * at : 64 * at + 64].view(8, 8).double(), wanted, atol=1e-5, rtol=1e-5)


def test_a_smooth_square_needs_one_coefficient() -> None:
    y, _ = turned(torch.full((64, 64), 3.0), 64)
    assert float(y[0]) == pytest.approx(192.0)
    assert float(y[1:].abs().max()) < 1e-3


def test_demo_sends_the_momentum_less_what_it_sent_before() -> None:
    """m = 0.999 m + g; q = the 32 largest coefficients of each square; m = m - inverse(q)."""
    codec = thinwire.Codec.parse("demo(chunk=8, topk=4)")
    momentum, slots = torch.zeros(16, 16), None
    for step in range(5):
        gradient = drawn(16, 16, seed=step)
        outcome = thinwire.simulate(codec, [gradient], slots=slots, step=step)
        slots = outcome.slots
        momentum = 0.999 * momentum + gradient
        y, _ = turned(momentum, 8)
        kept = torch.zeros_like(y)
        for low in range(0, 256, 64):
            top = low + y[low : low + 64].abs().topk(4).indices
            kept[top] = y[top]
        stage, ctx = thinwire.DCT(8, dims=2), Context(Spec.of((16, 16)), {})
        stage.decode(Encoded(kept), ctx, sent := torch.empty(256))
        torch.testing.assert_close(outcome.means[0], sent.view(16, 16), atol=1e-4, rtol=1e-4)
        momentum -= sent.view(16, 16)


def test_demo_has_the_published_settings() -> None:
    assert str(thinwire.Codec.parse("demo")) == (
        "feedback(keep=fp32, decay=0.999) | dct(chunk=64, dims=2) | topk(density=0.0078125, chunk=4096)"
    )


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("demo(topk=0)", "from 1 to chunk"),
        ("demo(chunk=8, topk=65)", "from 1 to chunk"),
        ("dct(chunk=2048, dims=2)", "at most 1024"),
        ("dct(dims=3)", "from 1 to 2"),
        ("fft | dct(chunk=64, dims=2)", "dct cannot follow fft"),
    ],
)
def test_bad_options_are_refused(text: str, rule: str) -> None:
    with pytest.raises(thinwire.CodecError, match=rule):
        thinwire.Codec.parse(text)


# PowerSGD with one factor a step.


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_mean_of_low_rank_is_exact_from_the_second_step_on(ranks: int) -> None:
    wanted = drawn(30, 2, seed=1) @ drawn(2, 50, seed=2)
    noise = [drawn(30, 50, seed=3 + rank) for rank in range(ranks - 1)]
    given, slots = [wanted * ranks - sum(noise, torch.zeros(1)), *noise], None
    for step in range(5):
        outcome = thinwire.simulate(
            "feedback(keep=off) | powersgd(rank=2, alternate=true)", given, slots=slots, step=step
        )
        slots = outcome.slots
        error = float((outcome.means[0] - wanted).norm() / wanted.norm())
        assert error < 1e-4 if step else error > 0.1


def test_one_factor_a_step_travels_in_one_round() -> None:
    slots, sent = None, []
    for step in range(4):
        given = [drawn(40, 60, seed=10 * step + rank) for rank in range(2)]
        outcome = thinwire.simulate("powersgd(rank=2, alternate=true)", given, slots=slots, step=step)
        slots = outcome.slots
        sent.append(outcome.sent[0])
    assert sent == [40 * 2 * 4, 60 * 2 * 4, 40 * 2 * 4, 60 * 2 * 4]
    assert thinwire.PowerSGD(alternate=True).rounds == 0


def test_a_basis_of_the_other_turn_is_refused() -> None:
    outcome = thinwire.simulate("powersgd(rank=2, alternate=true)", [drawn(40, 60)])
    saved = outcome.slots[0].state_dict()
    thinwire.Slot.from_state_dict(saved)
    saved["states"][0]["steps"] = 2
    with pytest.raises(thinwire.StateError, match="'q'"):
        thinwire.Slot.from_state_dict(saved)
