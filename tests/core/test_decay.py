"""A decaying residual: e = decay e + gradient enters, e - delivered stays."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import thinwire
from tests.contract.rows import gradients

CHAINS = [
    "topk(density=0.1)",
    "topk(density=1/8, chunk=16) | codebook(bits=2)",
    "sign",
    "dct(chunk=16) | topk(density=0.1)",  # its residual stays transformed
    "dct(chunk=4, dims=2) | topk(density=1/8, chunk=16)",
    "sharedtopk(density=0.2)",
    "powersgd(rank=1)",
    "mx(bits=4)",
]


def held(outcome: thinwire.Outcome) -> Tensor:
    residuals = [slot.residual for slot in outcome.slots if slot.residual is not None]
    return torch.stack(residuals).double().sum(0)


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("ranks", [1, 3])
@given(decay=st.floats(0, 1), seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=8)
def test_what_enters_is_sent_or_held(chain: str, ranks: int, decay: float, seed: int) -> None:
    """In every step: decay * held before + mean gradient = sent + held after."""
    codec, shape = thinwire.Feedback(decay=decay) | chain, (12, 10)
    slots, before = None, torch.zeros(120, dtype=torch.float64)
    for step in range(6):
        given = gradients(ranks, shape, seed=seed + step)
        outcome = thinwire.simulate(codec, given, slots=slots, step=step)
        slots, after = outcome.slots, held(outcome)
        entered = decay * before + torch.stack(given).double().mean(0).view(-1)
        sent = outcome.means[0].double().view(-1)
        torch.testing.assert_close(sent + after, entered, rtol=0, atol=2e-5 * float(entered.abs().max()))
        before = after


def test_decay_1_is_plain_feedback_and_decay_0_forgets() -> None:
    def run(text: str) -> list[Tensor]:
        slots, means = None, []
        for step in range(4):
            outcome = thinwire.simulate(text, gradients(2, (50,), seed=step), slots=slots, step=step)
            slots = outcome.slots
            means.append(outcome.means[0])
        return means

    chain = "topk(density=0.1)"
    for decayed, plain in ((1.0, chain), (0.0, f"feedback(keep=off) | {chain}")):
        found = run(f"feedback(decay={decayed}) | {chain}")
        assert all(torch.equal(a, b) for a, b in zip(found, run(plain), strict=True))


def test_a_step_that_is_not_finite_lets_nothing_decay() -> None:
    outcome = thinwire.simulate("feedback(decay=0.5) | topk(density=0.1)", gradients(2, (50,)))
    before = [copy.deepcopy(slot.state_dict()) for slot in outcome.slots]
    spoilt = gradients(2, (50,), seed=1)
    spoilt[1][3] = float("nan")
    after = thinwire.simulate("feedback(decay=0.5) | topk(density=0.1)", spoilt, slots=outcome.slots, step=1)
    for slot, old in zip(after.slots, before, strict=True):
        assert torch.equal(slot.state_dict()["residual"], old["residual"])


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("feedback(decay=1.5) | sign", "from 0 to 1"),
        ("feedback(keep=off, decay=0.9) | sign", "keeps no residual that could decay"),
        ("feedback(beta=0.5, decay=0.9) | sign", "two rules for one residual"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(text: str, rule: str) -> None:
    with pytest.raises(thinwire.CodecError, match=rule):
        thinwire.Codec.parse(text)
