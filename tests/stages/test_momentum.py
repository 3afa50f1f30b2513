"""Laws of momentum correction."""

import pytest
import torch
from torch import Tensor

from thinwire.core.codec import Codec
from thinwire.core.slot import Slot
from thinwire.stages.momentum import Momentum
from thinwire.worlds.simulated import simulate


def drawn(ranks: int, numel: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(numel, generator=generator) for _ in range(ranks)]


@pytest.mark.parametrize(
    "chain", ["momentum(beta=0.9)", "momentum(beta=0.9, masking=true)", "momentum(masking=true) | topk(density=1.0)"]
)
@pytest.mark.parametrize("reduction", [None, "ring"])
def test_without_loss_it_is_dense_momentum(chain: str, reduction: str | None) -> None:
    velocity, slots = torch.zeros(33), None
    for step in range(6):
        gradients = drawn(3, 33, step)
        for gradient in gradients:
            gradient[step::5] = 0.0  # nothing waits where there is nothing to send
        outcome = simulate(chain, gradients, slots=slots, step=step, reduction=reduction)
        slots = outcome.slots
        velocity = 0.9 * velocity + torch.stack(gradients).mean(0)
        torch.testing.assert_close(outcome.means[0], velocity, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("reduction", ["gathered", "sharded"])
def test_velocity_is_forgotten_just_where_the_own_contribution_arrived(reduction: str) -> None:
    gradients = drawn(3, 60, 1)
    outcome = simulate("momentum(masking=true) | topk(density=0.1)", gradients, reduction=reduction)
    for rank, slot in enumerate(outcome.slots):
        velocity = slot.states[0]["velocity"]
        forgotten = velocity == 0
        assert bool(forgotten.any())
        assert bool((outcome.means[0][forgotten] != 0).all())
        assert torch.equal(velocity[~forgotten], gradients[rank][~forgotten] / 3)


def test_velocity_is_kept_without_masking() -> None:
    gradients = drawn(2, 60, 1)
    slots = simulate("momentum | topk(density=0.1)", gradients).slots
    assert all(torch.equal(slot.states[0]["velocity"], g / 2) for slot, g in zip(slots, gradients, strict=True))


def test_dgc_conserves_the_corrected_gradients() -> None:
    """Without masking, delivered + held is the sum of all velocities."""
    slots, velocity = None, torch.zeros(80)
    total, delivered = torch.zeros(80), torch.zeros(80)
    for step in range(8):
        gradients = drawn(2, 80, step)
        outcome = simulate("momentum(beta=0.8) | topk(density=0.05)", gradients, slots=slots, step=step)
        slots = outcome.slots
        velocity = 0.8 * velocity + torch.stack(gradients).mean(0)
        total += velocity
        delivered += outcome.means[0]
    assert slots is not None
    held = sum(s.residual for s in slots if s.residual is not None)
    torch.testing.assert_close(delivered + held, total, atol=1e-4, rtol=1e-4)


def test_saved_state_continues_bit_for_bit() -> None:
    codec, slots = Codec.parse("dgc(density=0.05)"), None
    for step in range(3):
        slots = simulate(codec, drawn(2, 70, step), slots=slots, step=step).slots
    assert slots is not None
    saved = [Slot.from_state_dict(slot.state_dict()) for slot in slots]
    for step in range(3, 6):
        straight = simulate(codec, drawn(2, 70, step), slots=slots, step=step)
        resumed = simulate(codec, drawn(2, 70, step), slots=saved, step=step)
        assert torch.equal(straight.means[0], resumed.means[0])


def test_a_bad_number_changes_no_velocity() -> None:
    slots = simulate("dgc(density=0.1)", drawn(2, 40, 0)).slots
    before = [slot.states[0]["velocity"].clone() for slot in slots]
    gradients = drawn(2, 40, 1)
    gradients[1][5] = float("nan")
    outcome = simulate("dgc(density=0.1)", gradients, slots=slots, step=1)
    assert not any(bool(torch.isfinite(mean).all()) for mean in outcome.means)
    assert all(torch.equal(slot.states[0]["velocity"], old) for slot, old in zip(slots, before, strict=True))


def test_a_changed_loss_scale_rescales_the_velocity() -> None:
    slot = simulate(Momentum(beta=0.9), drawn(1, 10, 0)).slots[0]
    velocity = slot.states[0]["velocity"].clone()
    slot.rescale(4.0)
    assert torch.equal(slot.states[0]["velocity"], velocity * 4)


def test_local_clipping() -> None:
    gradient = torch.full((16,), 3.0)
    mean = simulate("momentum(clip=1.0)", [gradient] * 4).means[0]
    assert float(mean.norm()) == pytest.approx(0.5)


def test_shape_reaches_the_next_stage() -> None:
    codec = Codec.parse("momentum | powersgd(rank=1)")
    assert codec.wire_bytes((32, 32), 2) == codec.wire_bytes(32, 2) * 2
