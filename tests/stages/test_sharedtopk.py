"""The shared support: equal on all ranks, the leaders' own, summed exactly, and nothing lost outside it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire.core.codec import Codec
from thinwire.core.context import Context
from thinwire.core.slot import Slot
from thinwire.core.spec import Spec
from thinwire.errors import CodecError
from thinwire.kernels import sparse
from thinwire.stages.sharedtopk import SharedTopK
from thinwire.stages.sparsify import TopK
from thinwire.worlds.simulated import simulate

CHAINS = [
    "sharedtopk(density=0.1)",
    "sharedtopk(density=0.1, leaders=2, order=random)",
    "sharedtopk(density=0.2, leaders=2) | qsgd(bits=8)",
    "sharedtopk(density=0.2, leaders=2, warmup=3) | integers(bits=8)",
    "sharedtopk(density=0.2, leaders=3) | fp16",
    "fft(chunk=64) | sharedtopk(density=0.15)",
    "fft(chunk=64) | sharedtopk(density=0.15, dial=true) | rangefloat(bits=10)",
    "dct | sharedtopk(density=0.15, decay=5)",
    "scalecom(density=0.05, beta=1.0, warmup=2)",
]


def numbers(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@given(
    numel=st.integers(1, 400),
    ranks=st.integers(1, 5),
    leaders=st.integers(1, 3),
    step=st.integers(0, 20),
    order=st.sampled_from(["turn", "random"]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_the_result_is_the_mean_on_the_union_of_the_leaders_supports(
    numel: int, ranks: int, leaders: int, step: int, order: str, seed: int
) -> None:
    gradients = [numbers((numel,), seed + rank) for rank in range(ranks)]
    stage = SharedTopK(density=0.1, leaders=leaders, order=order)
    outcome = simulate(stage, gradients, step=step)
    support = torch.zeros(numel, dtype=torch.bool)
    for leader in stage.leading(Context(Spec(numel), {}, ranks=ranks, step=step)):
        support[sparse.largest(gradients[leader] / ranks, stage.kept(numel))] = True
    expected = torch.stack(gradients).mean(0) * support
    for mean in outcome.means:
        assert torch.equal(mean, outcome.means[0])
        torch.testing.assert_close(mean, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (33, 9)])
def test_ranks_end_alike_and_nothing_is_lost(chain: str, shape: tuple[int, ...]) -> None:
    gradients = [numbers(shape, rank) for rank in range(3)]
    slots, delivered = None, torch.zeros(shape)
    for step in range(6):
        outcome = simulate(chain, gradients, slots=slots, step=step)
        assert all(torch.equal(mean, outcome.means[0]) for mean in outcome.means)
        slots, delivered = outcome.slots, delivered + outcome.means[0]
    held = torch.stack([slot.residual for slot in slots or [] if slot.residual is not None]).sum(0).view(shape)
    summed_in_half = "fp16" in chain  # by the backend, and that rounding is nobody's residual
    expected = 6 * torch.stack(gradients).mean(0)
    torch.testing.assert_close(delivered + held, expected, rtol=0, atol=0.02 if summed_in_half else 2e-4)


def test_leaders_take_turns_and_random_ones_are_fair() -> None:
    in_turn = [SharedTopK(density=0.1).leading(Context(Spec(9), {}, ranks=3, step=s)) for s in range(6)]
    assert in_turn == [[0], [1], [2], [0], [1], [2]]
    counts = [0] * 5
    for step in range(1000):
        leaders = SharedTopK(density=0.1, leaders=2, order="random").leading(Context(Spec(9), {}, ranks=5, step=step))
        assert len(set(leaders)) == 2
        for leader in leaders:
            counts[leader] += 1
    assert sum((c - 400) ** 2 / 400 for c in counts) < 18.5  # chi-square, 4 degrees of freedom, p = 0.001


def test_the_support_does_not_grow_with_the_ranks() -> None:
    for ranks in (2, 8, 16):
        gradients = [numbers((2000,), rank) for rank in range(ranks)]
        outcome = simulate("sharedtopk(density=0.05)", gradients)
        assert int((outcome.means[0] != 0).sum()) == 100
        assert outcome.slots[0].notes["kept"] == 100


def test_density_one_is_the_plain_mean() -> None:
    gradients = [numbers((100,), rank) for rank in range(4)]
    torch.testing.assert_close(
        simulate("sharedtopk(density=1.0)", gradients).means[0], simulate("none", gradients).means[0], rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("chain", CHAINS[:6])
def test_bytes_are_as_foretold(chain: str) -> None:
    codec = Codec.parse(chain)
    gradients = [numbers((20000,), rank) for rank in range(4)]
    outcome = simulate(codec, gradients, step=10)
    assert sum(outcome.sent) / 4 == pytest.approx(codec.wire_bytes(20000, 4), rel=0.02)


@pytest.mark.parametrize(
    "chain", [*CHAINS, "fftsgd(warmup=4, transform=always)", "topk(density=0.1, warmup=4, decay=3)"]
)
def test_a_restored_slot_goes_on_bit_for_bit(chain: str) -> None:
    def run(slots: list[Slot], steps: range) -> list[torch.Tensor]:
        means = []
        for step in steps:
            gradients = [numbers((301,), 10 * step + rank) for rank in range(3)]
            means.append(simulate(chain, gradients, slots=slots, step=step).means[0])
        return means

    slots = [Slot(dial=0.5) for _ in range(3)]
    run(slots, range(3))
    saved = [Slot.from_state_dict(slot.state_dict()) for slot in slots]
    assert all(slot.dial == 0.5 for slot in saved)
    for one, other in zip(run(slots, range(3, 6)), run(saved, range(3, 6)), strict=True):
        assert torch.equal(one, other)


def test_the_low_pass_filter_forgets() -> None:
    gradients = [numbers((500,), rank) for rank in range(2)]
    slots = simulate("scalecom(density=0.02, beta=0.1, warmup=0)", gradients).slots
    whole = simulate("scalecom(density=0.02, beta=1.0, warmup=0)", gradients).slots
    second = simulate("scalecom(density=0.02, beta=0.1, warmup=0)", gradients, slots=slots, step=1).slots
    assert whole[0].residual is not None
    assert second[0].residual is not None
    assert float(second[0].residual.norm()) < 1.2 * float(whole[0].residual.norm())


def test_a_nan_on_a_follower_reaches_everyone() -> None:
    gradients = [numbers((500,), 0), numbers((500,), 1)]
    gradients[1][3] = float("nan")
    outcome = simulate("sharedtopk(density=0.01)", gradients, step=0)
    assert all(not torch.isfinite(mean).all() for mean in outcome.means)
    assert all(slot.residual is None for slot in outcome.slots)


def test_it_cannot_stand_behind_the_cut() -> None:
    with pytest.raises(CodecError, match="write sharedtopk"):
        Codec.parse("qsgd | sharedtopk(density=0.1)")


def test_pairs_are_chosen_by_topk_too() -> None:
    spec = Spec(10, group=2)
    x = torch.tensor([0.0, 3.0, 2.5, 2.5, 3.2, 0.0, 0.0, 0.0, 1.0, 1.0])
    encoded = TopK(density=0.4).encode(x, Context(spec, {}))
    assert encoded.values.tolist() == [2.5, 2.5, pytest.approx(3.2), 0.0]
    out = torch.ones(10)
    TopK(density=0.4).decode(encoded, Context(spec, {}), out)
    torch.testing.assert_close(out, torch.tensor([0, 0, 2.5, 2.5, 3.2, 0, 0, 0, 0, 0]))
