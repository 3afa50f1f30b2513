"""The laws of the PCA stage over steps: equal on all ranks, and nothing lost that is not held."""

import math
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from tests.stages.pca_gradients import SHAPE, draw, low_rank, state_of
from thinwire import Codec, CodecError, Outcome, Slot, StepInfo, simulate
from thinwire.core.average import average
from thinwire.core.ops import AllReduce

SHORT = "ratio=8, warmup=2, sample=7, reuse=6"  # steps 0-1 warm up, 2-8 are sampled, 9-14 compressed


def run_steps(codec: str, ranks: int, steps: Sequence[int], slots: list[Slot] | None = None) -> Iterator[Outcome]:
    for step in steps:
        outcome = simulate(codec, low_rank(ranks, step), slots=slots, step=step)
        slots = outcome.slots
        yield outcome


def last(outcomes: Iterator[Outcome]) -> Outcome:
    *_, outcome = outcomes
    return outcome


def relative(error: Tensor, of: Tensor) -> float:
    return float(error.norm() / of.norm())


# Phases.


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "codec",
    [
        f"pca({SHORT})",
        f"pca({SHORT}, order=filters, pool=false, slice=72, travel='qsgd(bits=4)')",
        f"pca({SHORT}) | qsgd(bits=8)",
        f"pca({SHORT}) | nuqsgd(bits=4) | huffman",
        f"pca({SHORT}) | integers(bits=8)",
        f"pca({SHORT}) | fp16",
        f"pca({SHORT}, order=auto)",
        f"pca({SHORT}, order=auto) | qsgd(bits=8)",
        f"feedback(keep=off) | pca({SHORT}, order=auto, centre=false, limit=0.001)",
        f"feedback(keep=off) | pca({SHORT}, limit=0.001)",
        "pca(energy=0.05, warmup=2, sample=7, reuse=6) | integers(bits=8)",
        "pca(energy=0.05, warmup=2, sample=7, reuse=6) | qsgd(bits=8)",
    ],
)
def test_all_ranks_agree_in_all_phases(codec: str, ranks: int) -> None:
    for step, outcome in enumerate(run_steps(codec, ranks, range(24))):
        mean = torch.stack(low_rank(ranks, step)).mean(0)
        assert all(torch.equal(m, outcome.means[0]) for m in outcome.means)
        phase, basis = state_of(outcome.slots[0]).get("phase"), outcome.slots[0].states[-1].get("basis")
        assert all(s.states[-1].get("phase") == phase for s in outcome.slots)
        if basis is not None:
            assert all(torch.equal(s.states[-1]["basis"], basis) for s in outcome.slots)
        assert relative(outcome.means[0] - mean, mean) < (4.0 if "filters" in codec else 0.8)


def test_bytes_of_compressed_and_other_steps() -> None:
    codec = Codec.parse(f"pca({SHORT})")
    plain, compressed = Codec().wire_bytes(SHAPE, 4), codec.wire_bytes(SHAPE, 4)
    assert compressed.exact
    assert compressed == 2 * 3 * (16 * 9 // 4) * 4  # 16 slices of K = 72, d = 9
    expected = [plain] * 9 + [compressed] * 6 + [plain] * (1 + 7) + [compressed]  # one step sends what was held
    for step, (outcome, size) in enumerate(zip(run_steps(str(codec), 4, range(24)), expected, strict=True)):
        if step in (9, 23):  # one rank sends the basis, and first its number of columns
            assert sorted(outcome.sent) == [size] * 3 + [size + 3 * (4 + 72 * 9 * 4)]
        else:
            assert outcome.sent == [size] * 4


def test_sampling_steps_travel_through_the_chain_they_are_given() -> None:
    codec = f"pca({SHORT}, travel='qsgd(bits=4)')"
    assert next(run_steps(codec, 3, [0])).sent == [Codec.parse("qsgd(bits=4)").wire_bytes(math.prod(SHAPE), 3)] * 3


@pytest.mark.parametrize(
    "codec",
    [
        f"pca({SHORT})",
        f"feedback(keep=off) | pca({SHORT}, limit=0.5) | qsgd(bits=4)",
        f"pca({SHORT}, order=auto)",
        "pca(energy=0.1, warmup=2, sample=7, reuse=6, order=auto)",
    ],
)
@pytest.mark.parametrize("pause", [1, 5, 9, 10, 12, 15, 19])
def test_a_saved_slot_continues_bit_for_bit(codec: str, pause: int) -> None:
    whole = last(run_steps(codec, 2, range(24)))
    half = last(run_steps(codec, 2, range(pause)))
    slots = [Slot.from_state_dict(slot.state_dict()) for slot in half.slots]
    last(run_steps(codec, 2, range(pause, 24), half.slots))  # what was saved does not follow
    resumed = last(run_steps(codec, 2, range(pause, 24), slots))
    assert all(torch.equal(a, b) for a, b in zip(resumed.means, whole.means, strict=True))


def test_a_slot_without_its_statistics_recovers() -> None:
    """The slots of one rank, loaded by all, lack what another rank had gathered: one period is lost, no more."""
    half = last(run_steps(f"pca({SHORT})", 2, range(6)))
    bare = next(slot for slot in half.slots if "gram" not in slot.states[0])
    slots = [Slot.from_state_dict(bare.state_dict()) for _ in range(2)]
    for step, outcome in enumerate(run_steps(f"pca({SHORT})", 2, range(6, 26), slots), 6):
        assert torch.equal(outcome.means[0], outcome.means[1])
        if step < 20:
            torch.testing.assert_close(outcome.means[0], torch.stack(low_rank(2, step)).mean(0))
    assert "basis" in outcome.slots[0].states[0]


@pytest.mark.parametrize("when", [0, 4, 9, 12])
def test_non_finite_steps_change_nothing(when: int) -> None:
    before = last(run_steps(f"pca({SHORT})", 2, range(when + 1)))
    saved = [Slot.from_state_dict(slot.state_dict()) for slot in before.slots]
    gradients = low_rank(2, when)
    gradients[1][3, 3] = float("inf")
    outcome = simulate(f"pca({SHORT})", gradients, slots=before.slots, step=when + 1)
    assert all(not torch.isfinite(m).all() for m in outcome.means)
    for slot, old in zip(outcome.slots, saved, strict=True):
        for key, value in slot.states[0].items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(old.states[0][key]))


def test_layers_decompose_at_different_steps_and_ranks() -> None:
    begins, owners = set(), set()
    for seed in range(12):
        slots = None
        for step in range(48):
            outcome = simulate(
                "pca(warmup=20, sample=20, reuse=6)", low_rank(3, step), slots=slots, step=step, seed=seed
            )
            slots = outcome.slots
            if "basis" in slots[0].states[0]:
                begins.add(step)
                owners.add(next(r for r, slot in enumerate(slots) if "decompose_seconds" in slot.notes))
                break
    assert begins <= set(range(40, 46))
    assert len(begins) >= 3
    assert owners == {0, 1, 2}


def test_the_majority_refreshes_a_basis_that_loses_too_much() -> None:
    """Ranks see gradients of another space from step 16 on; the basis would have served until 100."""
    codec = "pca(warmup=0, sample=6, reuse=100, limit=0.5)"
    for strangers, refreshed in ((1, False), (2, True)):
        slots = None
        for step in range(40):
            gradients = low_rank(3, step)
            if step >= 16:
                for rank in range(strangers):
                    gradients[rank] = gradients[rank].roll(7, dims=1)
            slots = simulate(codec, gradients, slots=slots, step=step).slots
        assert all(("basis" not in slot.states[0] or slot.states[0]["left"] > 85) == refreshed for slot in slots or [])


# Error feedback.


@pytest.mark.parametrize("tail", ["", " | qsgd(bits=4)", " | topk(density=0.1)", " | integers(bits=8)"])
@pytest.mark.parametrize("travel", ["none", "'qsgd(bits=4)'"])
def test_what_was_given_is_delivered_or_held(tail: str, travel: str) -> None:
    ranks = 3
    given_sum, delivered = torch.zeros(SHAPE), torch.zeros(SHAPE)
    for step, outcome in enumerate(run_steps(f"pca({SHORT}, travel={travel}){tail}", ranks, range(40))):
        given_sum += torch.stack(low_rank(ranks, step)).sum(0) / ranks
        delivered += outcome.means[0]
        held = torch.stack([slot.residual for slot in outcome.slots if slot.residual is not None]).sum(0)
        torch.testing.assert_close(delivered + held.view(SHAPE), given_sum, rtol=1e-4, atol=1e-3)


def test_a_backend_that_sums_in_place_leaves_nothing_held() -> None:
    """While a layer is not compressed, what was given is itself the operand of the all-reduce."""
    slot, x = Slot(), torch.ones(SHAPE)
    rounds = average(Codec.parse("pca(warmup=9)"), x, slot, StepInfo(ranks=2))
    op = next(rounds)
    assert isinstance(op, AllReduce)
    with pytest.raises(StopIteration):
        rounds.send([op.items[0].mul_(2)])
    assert slot.residual is not None
    assert not slot.residual.any()


@pytest.mark.parametrize("codec", ["pca", "pca(centre=false)", "pca | qsgd(bits=4)"])
def test_a_stale_basis_never_makes_the_residual_grow_without_bound(codec: str) -> None:
    """1,000 steps of low-rank gradients whose space turns: the basis is always of yesterday."""
    chain = str(Codec.parse(codec)).replace("pca(ratio=8", "pca(ratio=8, warmup=5, sample=10, reuse=80")
    shape, g = (12, 40), draw(3)
    space = torch.linalg.qr(torch.randn(40, 3, generator=g)).Q
    slots, largest = None, [0.0]
    for step in range(1000):
        space = torch.linalg.qr(space + 0.05 * torch.randn(40, 3, generator=g)).Q
        gradients = [torch.randn(12, 3, generator=g) @ space.t() + 0.05 for _ in range(2)]
        outcome = simulate(chain, gradients, slots=slots, step=step)
        slots = outcome.slots
        assert torch.isfinite(outcome.means[0]).all()
        if step % 100 == 0:
            largest.append(0.0)
        largest[-1] = max(largest[-1], float(slots[0].residual.norm()))  # type: ignore[union-attr]
    assert shape == tuple(outcome.means[0].shape)
    assert max(largest[-4:]) < 2 * max(largest[2:6])  # as large late as early
    assert max(largest) < 80 * 6.0  # no more than what was given in one period


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("codec", "least"), [("gradiveq", 7), ("gradiveq | qsgd", 16)])
def test_a_run_of_2000_steps_with_the_defaults_keeps_the_ratio(codec: str, least: float) -> None:
    """All phases counted: the warm-up, samplings, bases, and residuals that are sent before them."""
    sent, compressed, slots = 0, 0, None
    for step in range(2000):
        outcome = simulate(codec, low_rank(2, step, shape=(32, 64)), slots=slots, step=step)
        slots, sent = outcome.slots, sent + outcome.sent[0]
        compressed += slots[0].notes["elements_sent"] == 32 * 64 / 8
    assert 1700 < compressed < 2000
    assert 2000 * Codec().wire_bytes((32, 64), 2) / sent > least


# Options.


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("pca(ratio=4, energy=0.1)", "give one of them"),
        ("pca(ratio=1)", "ratio must be a number from 2"),
        ("pca(travel='fp16')", "travel takes wire coders"),
        ("pca(order=columns)", "one of rows, filters, auto"),
        ("qsgd | pca", "write pca | qsgd"),
    ],
)
def test_wrong_options_say_what_to_do(text: str, says: str) -> None:
    with pytest.raises(CodecError, match=says.replace("|", r"\|")):
        Codec.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "pca",
        "pca(energy=0.01)",
        "gradiveq",
        "gradiveq(ratio=16) | qsgd(bits=4)",
        "gradiveq(energy=0.05)",
        "pca(slice=768, order=filters, pool=false)",
        "gradiveq(travel='qsgd(bits=4)')",
    ],
)
def test_the_text_form_reads_back(text: str) -> None:
    codec = Codec.parse(text)
    assert Codec.parse(str(codec)) == codec
    assert Codec.parse("pca") == Codec.parse("pca(ratio=8)")
