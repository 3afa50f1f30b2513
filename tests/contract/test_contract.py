"""Laws that every chain obeys, whatever its stages."""

import copy

import pytest
import torch
from torch import Tensor

import thinwire
from tests.contract.rows import ROWS, WORLDS, gradients, simulate

SHAPE = (19, 3, 3, 3)


def reductions(codec: thinwire.Codec) -> list[str | None]:
    return [None, "sharded", "gathered", "ring"] if codec.coders else [None, "summed", "ring"]


def test_every_stage_has_a_row() -> None:
    missing = [s.name for s in thinwire.STAGES if not any(s.name in row for row in ROWS)]
    assert not missing


@pytest.mark.parametrize("row", ROWS)
def test_text_form_reads_back(row: str) -> None:
    codec = thinwire.Codec.parse(row)
    assert thinwire.Codec.parse(str(codec)) == codec
    assert str(thinwire.Codec.parse(str(codec))) == str(codec)


@pytest.mark.parametrize("ranks", WORLDS)
@pytest.mark.parametrize("row", ROWS)
def test_ranks_agree_and_send_what_was_promised(row: str, ranks: int) -> None:
    codec = thinwire.Codec.parse(row)
    for numel in (1, 2, 37, 1000):
        for reduction in reductions(codec):
            given = gradients(ranks, (numel,))
            outcome = simulate(codec, given, step=5, reduction=reduction)
            for mean in outcome.means:
                assert torch.equal(mean, outcome.means[0])
                assert torch.isfinite(mean).all()
            promised = codec.wire_bytes(numel, ranks, reduction)
            if promised.exact:
                assert outcome.sent == [promised] * ranks


@pytest.mark.parametrize("row", ROWS)
def test_a_run_repeats_exactly(row: str) -> None:
    first = simulate(row, gradients(3, SHAPE), seed=5, step=2)
    again = simulate(row, gradients(3, SHAPE), seed=5, step=2)
    assert torch.equal(first.means[0], again.means[0])
    assert first.sent == again.sent


@pytest.mark.parametrize("row", ROWS)
def test_inputs_are_left_alone(row: str) -> None:
    given = gradients(2, SHAPE)
    before = [g.clone() for g in given]
    simulate(row, given)
    assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("row", ROWS)
def test_any_type_and_shape(row: str, dtype: torch.dtype) -> None:
    for shape in [(), (0,), (3, 0, 2), (1,), (5, 7), (2, 3, 2, 2)]:
        given = [g.to(dtype) for g in gradients(3, shape)]
        outcome = simulate(row, given)
        assert outcome.means[0].shape == shape
        assert outcome.means[0].dtype == dtype
    sliced = [g.to(dtype)[::2, 1:].t() for g in gradients(2, (8, 6))]
    dense = [g.contiguous() for g in sliced]
    assert torch.equal(simulate(row, sliced).means[0], simulate(row, dense).means[0])


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("row", ROWS)
def test_a_non_finite_gradient_reaches_everyone_and_changes_nothing(row: str, poison: float) -> None:
    codec = thinwire.Codec.parse(row)
    for reduction in reductions(codec):
        outcome = simulate(codec, gradients(3, SHAPE), reduction=reduction)
        before = [copy.deepcopy(slot.state_dict()) for slot in outcome.slots]
        spoilt = gradients(3, SHAPE, seed=1)
        spoilt[1].view(-1)[-1] = poison
        after = simulate(codec, spoilt, slots=outcome.slots, step=1, reduction=reduction)
        for rank, mean in enumerate(after.means):
            assert not torch.isfinite(mean).all()
            assert same(after.slots[rank].state_dict(), before[rank])


def conserves(row: str) -> bool:
    """With momentum or a decaying residual, what goes in is not the gradient alone: their own tests state the law."""
    codec = thinwire.Codec.parse(row)
    return codec.feedback != "off" and codec.decay == 1.0 and not row.startswith("momentum")


@pytest.mark.parametrize("row", [row for row in ROWS if conserves(row)])
def test_given_is_delivered_or_held(row: str) -> None:
    """Summed over ranks and 50 steps, what went in is what came out plus what is still held."""
    codec = thinwire.Codec.parse(row)
    tolerance = 1e-5 if codec.feedback == "fp32" else 0.05
    for reduction in reductions(codec):
        slots, given, delivered = None, torch.zeros(SHAPE, dtype=torch.float64), torch.zeros(SHAPE, dtype=torch.float64)
        for step in range(50):
            shares = gradients(3, SHAPE, seed=step)
            outcome = simulate(codec, shares, slots=slots, step=step, reduction=reduction)
            slots = outcome.slots
            given += torch.stack(shares).double().mean(0)
            delivered += outcome.means[0].double()
        held = torch.stack([slot.residual for slot in outcome.slots if slot.residual is not None]).double().sum(0)
        assert torch.allclose(delivered + held.view(SHAPE), given, atol=tolerance * float(given.abs().max()))


@pytest.mark.parametrize("row", ROWS)
def test_slots_survive_a_checkpoint(row: str) -> None:
    slots = None
    for step in range(3):
        slots = simulate(row, gradients(2, SHAPE, seed=step), slots=slots, step=step).slots
    assert slots is not None
    restored = [thinwire.Slot.from_state_dict(slot.state_dict()) for slot in slots]
    straight = simulate(row, gradients(2, SHAPE, seed=9), slots=slots, step=3)
    resumed = simulate(row, gradients(2, SHAPE, seed=9), slots=restored, step=3)
    assert torch.equal(straight.means[0], resumed.means[0])


@pytest.mark.parametrize("row", [r for r in ROWS if thinwire.Codec.parse(r).self_contained])
def test_messages_stand_alone(row: str) -> None:
    codec = thinwire.Codec.parse(row)
    for numel in (0, 1, 5, 512, 1000):
        x = gradients(1, (numel,))[0]
        message = codec.encode(x, seed=3, step=1, rank=2)
        assert message.dtype == torch.uint8
        assert message.dim() == 1
        decoded = codec.decode(message, numel)
        onto = torch.full((numel,), 0.25)
        codec.decode(message, numel, out=onto, add=True)
        assert torch.allclose(onto, decoded + 0.25, rtol=1e-3, atol=1e-3)
        over = torch.full((numel,), 7.0)
        assert codec.decode(message, numel, out=over) is over
        assert torch.equal(over, decoded)


@pytest.mark.parametrize(
    "row", [r for r in ROWS if r != "none" and "ef21" not in r and thinwire.Codec.parse(r).additive]
)
def test_additive_chains_sum_while_encoded(row: str) -> None:
    """What the sum decodes to is the sum of what each rank's part decodes to: mean + held = given."""
    given = gradients(4, (501,))
    outcome = simulate(f"feedback(keep=fp32) | {row}", given)
    held = torch.stack([slot.residual for slot in outcome.slots if slot.residual is not None]).sum(0)
    expected = torch.stack(given).mean(0)
    rounding = {"fp16": 2e-3, "bf16": 2e-2}.get(row, 1e-5)  # these also round the sums on their way
    assert torch.allclose(outcome.means[0] + held, expected, atol=rounding * float(expected.abs().max()))


def same(a: object, b: object) -> bool:
    """Equal in structure, and bit for bit where there are tensors."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b
