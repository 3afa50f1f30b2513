"""Averaging: reductions, facts of chains, and what is refused."""

import pytest
import torch

import thinwire
from tests.contract.rows import gradients, simulate
from thinwire import Codec, CodecError, Slot, StateError, StepInfo
from thinwire.core.average import average
from thinwire.core.coalesced import coalesced
from thinwire.core.reducers import choose_reduction
from thinwire.core.spec import Spec
from thinwire.worlds.simulated import run


def test_facts_of_chains() -> None:
    assert Codec.parse("qsgd").unbiased
    assert not Codec.parse("qsgd").additive
    assert Codec.parse("integers").additive
    assert Codec.parse("integers").unbiased
    assert not Codec.parse("topk(density=0.1) | qsgd").unbiased
    assert Codec.parse("none").additive
    assert Codec.parse("none").unbiased
    assert Codec.parse("rangefloat(bits=8, rounding=stochastic)").unbiased
    assert not Codec.parse("rangefloat(bits=8)").unbiased


def test_feedback_is_on_for_biased_chains_only() -> None:
    assert Codec.parse("topk(density=0.1)").feedback == "fp32"
    assert Codec.parse("qsgd").feedback == "off"
    assert Codec.parse("feedback(keep=off) | sign").feedback == "off"
    assert Codec.parse("feedback(keep=bf16) | sign").feedback == "bf16"
    assert Codec.parse("fp16").feedback == "off"


@pytest.mark.parametrize(
    ("codec", "reduction", "message"),
    [
        (
            "qsgd",
            "summed",
            "reduction 'summed' does not fit: what qsgd sends cannot be summed; use sharded or gathered or ring",
        ),
        ("none", "sharded", "reduction 'sharded' does not fit: the chain is additive; use summed or ring"),
        ("qsgd", "tree", "there is no reduction 'tree'; known are summed, sharded, gathered, ring"),
    ],
)
def test_illegal_reductions(codec: str, reduction: str, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        thinwire.simulate(codec, gradients(2, (8,)), reduction=reduction)


def test_the_cheapest_reduction_is_chosen() -> None:
    qsgd = Codec.parse("qsgd")
    assert qsgd.wire_bytes(10**6, 2) == qsgd.wire_bytes(10**6, 2, "gathered")  # same bytes, fewer rounds
    assert qsgd.wire_bytes(10**6, 8) == qsgd.wire_bytes(10**6, 8, "sharded")
    assert qsgd.wire_bytes(100, 8) == qsgd.wire_bytes(100, 8, "gathered")  # small: rounds cost more than bytes


def test_what_is_short_goes_along_with_what_is_long() -> None:
    coders, spec = Codec.parse("qsgd").coders, Spec(100)
    assert choose_reduction(coders, spec, 4) == "gathered"
    assert choose_reduction(coders, spec, 4, bundle_numel=10**6) == "sharded"
    assert choose_reduction(coders, spec, 2, bundle_numel=10**6) == "gathered"
    shapes = [(100,), (500, 400)]
    given = [[gradients(4, shape, seed=i)[rank] for i, shape in enumerate(shapes)] for rank in range(4)]
    turns = [StepInfo(rank, 4, bundle_numel=200_100) for rank in range(4)]
    rounds = [
        coalesced([average(Codec.parse("qsgd"), g, Slot(), turn) for g in mine])
        for mine, turn in zip(given, turns, strict=True)
    ]
    results, _ = run(rounds)
    for i in range(2):
        mean = torch.stack([mine[i] for mine in given]).mean(0)
        assert all(torch.equal(means[i], results[0][i]) for means in results)
        assert (results[0][i] - mean).norm() < 0.5 * mean.norm()


def test_the_mean_of_none_is_the_mean() -> None:
    given = [g.double() for g in gradients(4, (33,))]
    assert torch.allclose(thinwire.simulate("none", given).means[0], torch.stack(given).mean(0), rtol=1e-15)


def test_a_slot_belongs_to_one_chain_and_shape() -> None:
    slots = thinwire.simulate("sign", gradients(1, (8,))).slots
    with pytest.raises(StateError, match=r"this slot belongs to 'sign' on shape \(8,\), not to 'sign' on \(9,\)"):
        thinwire.simulate("sign", gradients(1, (9,)), slots=slots)
    with pytest.raises(StateError, match="belongs to 'sign'"):
        thinwire.simulate("qsgd", gradients(1, (8,)), slots=slots)


def test_a_foreign_state_is_refused() -> None:
    for bad in ({}, {"chain": "sign"}, {**Slot().state_dict(), "residual": 3}, {**Slot().state_dict(), "shape": "x"}):
        with pytest.raises(StateError, match="this is not the saved state of a slot"):
            Slot.from_state_dict(bad)


def test_unlike_ranks_are_refused() -> None:
    with pytest.raises(CodecError, match="all ranks' tensors must be alike: rank 0 has"):
        thinwire.simulate("qsgd", [torch.zeros(3), torch.zeros(4)])
    with pytest.raises(CodecError, match="at least one rank"):
        thinwire.simulate("qsgd", [])
    with pytest.raises(CodecError, match="2 ranks need 2 slots; got 1"):
        thinwire.simulate("qsgd", gradients(2, (3,)), slots=[Slot()])


def test_messages_of_agreeing_stages_are_refused() -> None:
    with pytest.raises(CodecError, match="needs the ranks to agree first"):
        Codec.parse("integers").encode(torch.zeros(3))


def test_integers_refuse_more_ranks_than_fit() -> None:
    with pytest.raises(CodecError, match=r"the sum over 4 ranks would overflow 3 bits; use integers\(bits=4\) or more"):
        thinwire.simulate("integers(bits=3)", gradients(4, (8,)))


def test_a_slot_without_a_chain_follows_the_loss_scale() -> None:
    slot = Slot(residual_data=torch.ones(4))  # what another plan left to be delivered
    slot.rescale(0.5)
    assert torch.equal(slot.residual, torch.full((4,), 0.5))  # type: ignore[arg-type]


def test_a_changed_loss_scale_rescales_what_is_held() -> None:
    slot = thinwire.simulate("topk(density=0.5)", gradients(1, (8,))).slots[0]
    assert slot.residual is not None
    before = slot.residual.clone()
    slot.rescale(0.5)
    assert torch.equal(slot.residual, before / 2)


def test_saturated_values_are_counted() -> None:
    outcome = thinwire.simulate("rangefloat(bits=8, minimum=-1, maximum=1)", [torch.tensor([0.5, 3.0, -2.0, 0.0])])
    assert outcome.slots[0].notes["saturated"] == 2


@pytest.mark.parametrize(
    "chain",
    [
        "sign",
        "momentum(beta=0.9, masking=true) | topk(density=0.1)",
        "pca(ratio=4, warmup=0, sample=2, reuse=9)",
        "importance(density=0.1, momentum=0.9)",
        "powersgd(rank=2)",
        "fft(chunk=64) | sharedtopk(density=0.2)",
        "alq(start=2)",
    ],
)
def test_any_chain_can_be_delayed(chain: str) -> None:
    """The first steps are the plain mean (of the velocity, with momentum in the chain); then the chain begins."""
    slots, plain = None, 0
    for step in range(9):
        given = gradients(3, (64, 24), seed=step)
        outcome = simulate(f"delay(steps=5) | {chain}", given, slots=slots, step=step)
        slots = outcome.slots
        if step < 5:
            assert outcome.sent == [2 * 2 * 512 * 4] * 3
            plain += torch.allclose(outcome.means[0], torch.stack(given).mean(0), atol=1e-5)
    assert plain == (1 if "momentum" in chain else 5)
    assert outcome.sent[0] < 2 * 2 * 512 * 4


def test_coalesced_rounds_give_each_segment_its_own_result_in_fewer_rounds() -> None:
    shapes = [(30,), (4, 5), (700,), (3,)]
    chains = [Codec.parse(c) for c in ("qsgd", "topk(density=0.2)", "qsgd | huffman", "integers")]
    ranks = 3

    def rounds(rank: int) -> list:
        return [
            average(codec, gradients(ranks, shape, seed=i)[rank], Slot(), StepInfo(rank, ranks))
            for i, (codec, shape) in enumerate(zip(chains, shapes, strict=True))
        ]

    merged, sent = run([coalesced(rounds(rank)) for rank in range(ranks)])
    total = 0
    for i, (codec, shape) in enumerate(zip(chains, shapes, strict=True)):
        alone = thinwire.simulate(codec, gradients(ranks, shape, seed=i))
        total += alone.sent[0]
        for rank in range(ranks):
            assert torch.equal(merged[rank][i], alone.means[rank])
    assert sent[0] == total
