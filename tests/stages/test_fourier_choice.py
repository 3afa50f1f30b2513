"""A transform that decides for each tensor whether it stays: by the first averages, equally on all ranks."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from thinwire import FFT, Codec, CodecError, Slot, StateError, simulate
from thinwire.core.context import Context
from thinwire.core.spec import Spec
from thinwire.stages.fourier import AGAIN, TRIALS

CODEC = "fft(chunk=256, auto=0.15) | topk(density=0.15) | rangefloat(bits=10)"
PLAIN = "topk(density=0.15) | rangefloat(bits=10)"
SHAPE = (24, 64)


def noise(seed: int) -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))


def smooth(seed: int) -> Tensor:
    return noise(seed).view(-1).cumsum(0).view(SHAPE)


def spiky(seed: int) -> Tensor:
    return noise(seed) ** 5


def run(codec: str, kind: object, steps: range, slots: list[Slot] | None = None, ranks: int = 3) -> list[Slot]:
    for step in steps:
        gradients = [kind(100 * step + rank) for rank in range(ranks)]  # type: ignore[operator]
        outcome = simulate(codec, gradients, slots=slots, step=step)
        slots = outcome.slots
        assert all(torch.equal(mean, outcome.means[0]) for mean in outcome.means)
    assert slots is not None
    return slots


@pytest.mark.parametrize(("kind", "how"), [(smooth, "kept"), (spiky, "left out")])
def test_it_stays_where_it_concentrates_and_says_so(kind: object, how: str) -> None:
    codec = Codec.parse(CODEC)
    slots = run(CODEC, kind, range(TRIALS - 1))
    assert slots[0].decided(codec) == []
    slots = run(CODEC, kind, range(TRIALS - 1, TRIALS + 2), slots)
    held = TRIALS if how == "kept" else 0
    said = f"fft: {how}, its coefficients held more energy than plain elements in {held} of {TRIALS} steps"
    assert all(slot.decided(codec) == [said] for slot in slots)
    assert all(slot.in_sum_space == (how == "kept") for slot in slots)


@pytest.mark.parametrize(("kind", "chain"), [(smooth, CODEC.replace(", auto=0.15", "")), (spiky, PLAIN)])
def test_what_follows_has_the_bits_of_the_chain_that_was_chosen(kind: object, chain: str) -> None:
    slots = run(CODEC, kind, range(TRIALS))
    residuals = [slot.residual for slot in slots]
    others = [Slot(residual_data=None if r is None else r.clone(), steps=TRIALS) for r in residuals]
    for step in range(TRIALS, TRIALS + 4):
        gradients = [kind(100 * step + rank) for rank in range(3)]  # type: ignore[operator]
        found = simulate(CODEC, gradients, slots=slots, step=step)
        expected = simulate(chain, gradients, slots=others, step=step)
        assert torch.equal(found.means[0], expected.means[0])
        assert found.sent == expected.sent


@pytest.mark.parametrize("kind", [smooth, spiky])
@pytest.mark.parametrize("codec", [CODEC, "dct(chunk=8, auto=0.1, dims=2) | topk(density=0.1)"])
def test_what_is_given_is_delivered_or_held(codec: str, kind: object) -> None:
    slots, given_sum, delivered = None, torch.zeros(SHAPE).double(), torch.zeros(SHAPE).double()
    for step in range(TRIALS + 4):
        gradients = [kind(100 * step + rank) for rank in range(3)]  # type: ignore[operator]
        outcome = simulate(codec, gradients, slots=slots, step=step)
        slots = outcome.slots
        given_sum += torch.stack(gradients).double().mean(0)
        delivered += outcome.means[0].double()
        held = sum(slot.residual.double() for slot in slots if slot.residual is not None)
        error = (delivered + torch.as_tensor(held).view(SHAPE) - given_sum).norm() / given_sum.norm()
        assert float(error) < 1e-5


@pytest.mark.parametrize("pause", [1, TRIALS - 1, TRIALS, TRIALS + 2])
@pytest.mark.parametrize("kind", [smooth, spiky])
def test_a_saved_slot_continues_bit_for_bit(kind: object, pause: int) -> None:
    whole = run(CODEC, kind, range(TRIALS + 4))
    half = run(CODEC, kind, range(pause))
    loaded = [Slot.from_state_dict(slot.state_dict()) for slot in half]
    resumed = run(CODEC, kind, range(pause, TRIALS + 4), loaded)
    for a, b in zip(resumed, whole, strict=True):
        assert a.residual is not None
        assert b.residual is not None
        assert torch.equal(a.residual, b.residual)
        assert a.states == b.states


def turning(seed: int) -> Tensor:
    """Smooth in the first steps, later not."""
    return smooth(seed) if seed < 600 else spiky(seed)


@pytest.mark.parametrize(("kind", "how"), [(smooth, "kept"), (turning, "left out")])
def test_what_stayed_is_tried_again(monkeypatch: pytest.MonkeyPatch, kind: object, how: str) -> None:
    monkeypatch.setattr("thinwire.stages.fourier.AGAIN", 6)
    codec, slots = Codec.parse(CODEC), None
    given_sum, delivered = torch.zeros(SHAPE).double(), torch.zeros(SHAPE).double()
    for step in range(14):
        gradients = [kind(100 * step + rank) for rank in range(3)]  # type: ignore[operator]
        outcome = simulate(codec, gradients, slots=slots, step=step)
        slots = [Slot.from_state_dict(slot.state_dict()) for slot in outcome.slots]
        given_sum += torch.stack(gradients).double().mean(0)
        delivered += outcome.means[0].double()
        said = slots[0].decided(codec)
        assert [word.split(",")[0] for word in said] == (
            [] if step < 3 or 5 <= step < 9 else ["fft: kept" if step < 9 else f"fft: {how}"]
        )
    assert slots is not None
    held = torch.stack([slot.residual.double() for slot in slots if slot.residual is not None]).sum(0)
    assert float((delivered + held.view(SHAPE) - given_sum).norm() / given_sum.norm()) < 1e-5


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    mix=st.floats(0.0, 1.0),
    density=st.sampled_from([0.05, 0.15, 0.5]),
    scale=st.sampled_from([1e-38, 1e-6, 1.0, 1e30]),
)
def test_the_comparison_is_that_of_energies_in_fp64(seed: int, mix: float, density: float, scale: float) -> None:
    """0.15 of the pairs of an FFT against 5/6 as many of the plain elements, which take as many bytes."""
    x = (mix * smooth(seed) / 20 + (1 - mix) * spiky(seed)).view(-1)
    stage, ctx = FFT(256, density), Context(Spec.of(SHAPE), {"seen": 0, "better": 0})
    stage.observe(scale * x, ctx)
    rows = torch.fft.rfft(x.double().view(-1, 256), norm="ortho").abs().square()
    pairs = torch.cat([rows[:, :1] + rows[:, -1:], 2 * rows[:, 1:-1]], 1).view(-1)
    held = float(pairs.topk(math.ceil(density * pairs.numel())).values.sum() / pairs.sum())
    squares = x.double().square()
    plain = float(squares.topk(math.ceil(density * 5 / 6 * x.numel())).values.sum() / squares.sum())
    if abs(held - plain) > 1e-3:
        assert ctx.state == {"seen": 1, "better": int(held > plain)}


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_tensor_without_gradients_keeps_its_transform(value: float) -> None:
    slots = None
    for step in range(TRIALS + 1):
        slots = simulate(CODEC, [torch.full(SHAPE, value)] * 2, slots=slots, step=step).slots
    assert slots is not None
    assert slots[0].states[0] == {"seen": TRIALS + 1, "better": TRIALS}


def test_a_state_that_cannot_be_is_refused() -> None:
    saved = run(CODEC, smooth, range(2))[0].state_dict()
    for state in (
        {"seen": AGAIN + TRIALS + 1, "better": 0},
        {"seen": 50, "better": TRIALS + 1},
        {"seen": 1, "better": 2},
        {"seen": 1},
    ):
        with pytest.raises(StateError):
            Slot.from_state_dict(saved | {"states": [state, {}, {}]})


def test_the_preset_chooses_and_can_be_told_not_to() -> None:
    assert str(Codec.parse("fftsgd")).startswith("fft(auto=0.15) | topk(density=0.15, ")
    assert str(Codec.parse("fftsgd(transform=always)")).startswith("fft | topk(density=0.15, ")
    assert Codec.parse(str(Codec.parse("fftsgd"))) == Codec.parse("fftsgd")
    with pytest.raises(CodecError, match="transform must be auto or always"):
        Codec.parse("fftsgd(transform=never)")
