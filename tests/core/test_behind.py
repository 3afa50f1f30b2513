"""A residual that stays behind orthonormal stages: the same laws as for one in the gradient's own space."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from tests.contract.rows import gradients
from thinwire import Codec, Slot, StepInfo, simulate
from thinwire.core.average import average
from thinwire.core.context import Context
from thinwire.core.spec import Spec
from thinwire.core.stage import DeliveryStage, Encoded
from thinwire.stages.fourier import FFT
from thinwire.stages.sparsify import TopK
from thinwire.worlds.simulated import run

CHAINS = [
    "fft(chunk=64) | topk(density=0.1)",
    "fft(chunk=64) | topk(density=0.2) | rangefloat(bits=8)",
    "dct(chunk=64) | topk(density=0.1) | bf16",
    "feedback(keep=bf16) | fft(chunk=64) | topk(density=0.1)",
    "fft(chunk=32) | hadamard(chunk=64) | sign",
    "feedback(keep=fp32) | hadamard(chunk=64) | alq(bits=3, bucket=64, start=1)",
    "feedback(keep=bf16) | dct(chunk=64) | topk(density=0.1)",
    "delay(steps=2) | fft(chunk=64) | topk(density=0.1)",
]


@pytest.mark.parametrize(
    ("chain", "numel", "behind"),
    [
        ("fft | topk(density=0.1)", 100, True),
        ("fft | topk(density=0.1)", 101, False),  # the spectrum is one number longer
        ("dct | topk(density=0.1)", 101, True),
        ("fft", 100, False),
        ("topk(density=0.1)", 100, False),
        ("feedback(beta=0.5) | fft | topk(density=0.1)", 100, False),
        ("momentum(beta=0.9) | fft | topk(density=0.1)", 100, False),
        ("fft | sharedtopk(density=0.1) | qsgd(bits=4)", 100, False),
    ],
)
def test_where_a_residual_stays(chain: str, numel: int, behind: bool) -> None:
    assert Codec.parse(chain).residual_in_sum_space(Spec.of((numel,))) is behind
    feeding = chain if chain.startswith(("feedback", "momentum")) else f"feedback(keep=fp32) | {chain}"
    assert simulate(feeding, gradients(2, (numel,))).slots[0].in_sum_space is behind


def averaged(chain: str, steps: range, slots: list[Slot] | None, look: bool = False) -> tuple[Tensor, list[Slot]]:
    delivered = torch.zeros(300, dtype=torch.float64)
    for step in steps:
        outcome = simulate(chain, gradients(3, (300,), seed=step), slots=slots, step=step)
        slots, delivered = outcome.slots, delivered + outcome.means[0].double()
        assert not look or all(slot.residual is not None for slot in slots)
    assert slots is not None
    return delivered, slots


@pytest.mark.parametrize("look", [False, True], ids=["left alone", "looked at"])
@pytest.mark.parametrize("chain", CHAINS)
def test_given_is_delivered_or_held_whoever_looks(chain: str, look: bool) -> None:
    delivered, slots = averaged(chain, range(8), None, look)
    given = sum(torch.stack(gradients(3, (300,), seed=step)).double().mean(0) for step in range(8))
    held = sum(slot.residual.double() for slot in slots if slot.residual is not None)
    tolerance = 0.03 if "bf16" in chain else 1e-5
    torch.testing.assert_close(
        delivered + held, given, rtol=0, atol=tolerance * float(torch.as_tensor(given).abs().max())
    )


@pytest.mark.parametrize("chain", CHAINS)
def test_reading_a_residual_changes_nothing(chain: str) -> None:
    _, slots = averaged(chain, range(4), None)
    before = [(slot.residual_data, slot.in_sum_space) for slot in slots]
    first, second = ([slot.residual for slot in slots] for _ in range(2))
    assert all(a is not None and b is not None and torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(
        s.residual_data is data and s.in_sum_space is there for s, (data, there) in zip(slots, before, strict=True)
    )
    looked, _ = averaged(chain, range(8), None, look=True)
    assert torch.equal(looked, averaged(chain, range(8), None)[0])


@pytest.mark.parametrize("chain", CHAINS)
def test_a_checkpoint_goes_on_exactly_and_changes_nothing(chain: str) -> None:
    _, slots = averaged(chain, range(4), None)
    saved = [Slot.from_state_dict(slot.state_dict()) for slot in slots]
    assert all(a.in_sum_space and b.in_sum_space for a, b in zip(slots, saved, strict=True))
    straight, _ = averaged(chain, range(4, 7), slots)
    resumed, _ = averaged(chain, range(4, 7), saved)
    untouched, _ = averaged(chain, range(4, 7), averaged(chain, range(4), None)[1])
    assert torch.equal(straight, resumed)
    assert torch.equal(straight, untouched)


@pytest.mark.parametrize("chain", CHAINS)
def test_a_step_that_is_not_finite_and_a_new_loss_scale(chain: str) -> None:
    _, slots = averaged(chain, range(4), None)
    before = [slot.residual_data.clone() for slot in slots if slot.residual_data is not None]
    given = gradients(3, (300,), seed=9)
    given[1][7] = float("inf")
    assert not simulate(chain, given, slots=slots, step=4).means[0].isfinite().all()
    assert all(
        torch.equal(a, b.residual_data) for a, b in zip(before, slots, strict=True) if b.residual_data is not None
    )
    there = [slot.residual for slot in map(Slot.from_state_dict, (slot.state_dict() for slot in slots))]
    for slot, whole in zip(slots, there, strict=True):
        slot.rescale(0.5)
        assert whole is not None
        torch.testing.assert_close(slot.residual, whole * 0.5, rtol=1e-2 if "bf16" in chain else 1e-5, atol=1e-6)


def test_what_is_lost_is_measured_where_it_is() -> None:
    """The figures of a chain that keeps its residual behind are those of its twin that does not."""
    shares = {}
    for head in ("", "feedback(beta=0.999999) | "):
        codec, slots = Codec.parse(head + "fft(chunk=64) | topk(density=0.1)"), [Slot(), Slot()]
        for step in range(3):
            turns = [StepInfo(rank, 2, 0, step, measure=True) for rank in range(2)]
            given = gradients(2, (300,), seed=step)
            run([average(codec, g, s, t) for g, s, t in zip(given, slots, turns, strict=True)])
        shares[head] = [slots[0].notes["lost"], slots[0].notes["given"]]
        assert slots[0].in_sum_space is (not head)
    one, other = shares.values()
    assert one == pytest.approx(other, rel=1e-3)
    assert Slot().residual is None


@dataclass(frozen=True, repr=False)
class ToldTopK(DeliveryStage, TopK):
    """A coder that is told what was delivered, which is said in the tensor's own space."""

    told: ClassVar[list[Tensor]] = []

    def delivered(self, sent: Tensor, ctx: Context) -> None:
        self.told.append(sent.clone())


def test_where_a_stage_is_told_what_was_delivered_the_residual_is_there_too() -> None:
    codec = Codec((FFT(chunk=64), ToldTopK(density=0.1)))
    assert not codec.residual_in_sum_space(Spec.of((300,)))
    given, delivered, slots = torch.zeros(300, dtype=torch.float64), torch.zeros(300, dtype=torch.float64), None
    for step in range(4):
        ToldTopK.told.clear()
        shares = gradients(3, (300,), seed=step)
        outcome = simulate(codec, shares, slots=slots, step=step)
        slots, given = outcome.slots, given + torch.stack(shares).double().mean(0)
        delivered += outcome.means[0].double()
        torch.testing.assert_close(torch.stack(ToldTopK.told).sum(0), outcome.means[0])
    held = sum(slot.residual.double() for slot in outcome.slots if slot.residual is not None)
    torch.testing.assert_close(delivered + held, given, rtol=0, atol=1e-5 * float(given.abs().max()))


@dataclass(frozen=True, repr=False)
class WatchedFFT(FFT):
    """Notes whether a residual enters."""

    seen: ClassVar[list[bool]] = []

    def encode(self, x: Tensor, ctx: Context) -> Encoded:
        self.seen.append(ctx.has_residual)
        return super().encode(x, ctx)


@pytest.mark.parametrize("numel", [300, 301], ids=["kept in the sum space", "kept in the tensor's own"])
def test_stages_know_that_a_residual_enters(numel: int) -> None:
    codec, slots = Codec((WatchedFFT(chunk=64), TopK(density=0.1))), None
    WatchedFFT.seen.clear()
    for step in range(3):
        slots = simulate(codec, gradients(2, (numel,), seed=step), slots=slots, step=step, reduction="gathered").slots
    assert WatchedFFT.seen == [False] * 2 + [True] * 4
