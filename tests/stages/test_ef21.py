"""Laws of EF21: estimates follow the gradients, and their sum is the result."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import thinwire
from tests.contract.rows import gradients

CHAINS = [
    "topk(density=0.2)",
    "topk(density=1/8, chunk=16) | codebook(bits=2)",
    "sign",
    "mx(bits=4)",
    "sharedtopk(density=0.2)",
]


def run(codec: str, given: list[list[Tensor]]) -> thinwire.Outcome:
    slots = None
    for step, now in enumerate(given):
        outcome = thinwire.simulate(codec, now, slots=slots, step=step)
        slots = outcome.slots
    return outcome


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("ranks", [1, 3])
@given(seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=8)
def test_the_result_is_the_sum_of_the_estimates(chain: str, ranks: int, seed: int) -> None:
    outcome = run(f"ef21 | {chain}", [gradients(ranks, (60,), seed=seed + step) for step in range(6)])
    estimates = torch.stack([slot.states[0]["estimate"] for slot in outcome.slots]).sum(0)
    scale = float(outcome.means[0].abs().max())
    torch.testing.assert_close(estimates, outcome.means[0], rtol=0, atol=1e-5 * scale)
    for slot in outcome.slots:
        assert torch.equal(slot.states[0]["sum"], outcome.means[0])
        assert slot.residual is None


@pytest.mark.parametrize("chain", CHAINS)
def test_a_constant_gradient_is_learnt(chain: str) -> None:
    given = gradients(3, (60,), seed=5)
    wanted = torch.stack(given).mean(0)
    errors = [float((run(f"ef21 | {chain}", [given] * steps).means[0] - wanted).norm()) for steps in (1, 10, 80)]
    assert errors[0] > errors[1] >= errors[2]
    assert errors[2] < 1e-2 * float(wanted.norm())


def test_without_loss_it_changes_nothing() -> None:
    given = [gradients(3, (60,), seed=step) for step in range(4)]
    found = run("ef21", given).means[0]
    torch.testing.assert_close(found, torch.stack(given[-1]).mean(0), rtol=0, atol=1e-5)


def test_estimates_follow_the_loss_scale() -> None:
    outcome = run("ef21 | topk(density=0.2)", [gradients(2, (60,))])
    slot = outcome.slots[0]
    before = {key: value.clone() for key, value in slot.states[0].items()}
    slot.rescale(0.5)
    assert all(torch.equal(slot.states[0][key], value * 0.5) for key, value in before.items())


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("feedback(keep=fp32) | ef21 | sign", "leave feedback out"),
        ("fft | ef21 | sign", "ef21 cannot follow fft"),
        ("topk(density=0.1) | ef21", "cannot"),
    ],
)
def test_chains_that_would_count_twice_are_refused(text: str, rule: str) -> None:
    with pytest.raises(thinwire.CodecError, match=rule):
        thinwire.Codec.parse(text)


def test_a_damaged_state_is_refused() -> None:
    saved = run("ef21 | sign", [gradients(2, (60,))]).slots[0].state_dict()
    saved["states"][0]["sum"] = torch.zeros(3)
    with pytest.raises(thinwire.StateError, match="sum"):
        thinwire.Slot.from_state_dict(saved)
