"""Laws of importance-weighted pruning."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from thinwire.core.codec import Codec
from thinwire.core.context import Context
from thinwire.core.slot import Slot
from thinwire.core.spec import Spec
from thinwire.errors import CodecError
from thinwire.kernels import sparse
from thinwire.kernels.importance import importance
from thinwire.stages.importance import Importance, mask_nodes
from thinwire.worlds.simulated import Outcome, simulate


def drawn(ranks: int, numel: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(numel, generator=generator) for _ in range(ranks)]


def agree_equal(outcome: Outcome) -> Tensor:
    """The one result of all ranks."""
    assert all(torch.equal(mean, outcome.means[0]) for mean in outcome.means)
    return outcome.means[0]


def own_mask(stage: Importance, share: Tensor, weights: Tensor, ranks: int, kept: int) -> set[int]:
    ctx = Context(Spec(share.numel()), {}, ranks=ranks, weights=weights)
    return set(stage.important(share, kept, ctx).tolist())


@settings(max_examples=60, deadline=None)
@given(
    numel=st.integers(1, 300),
    ranks=st.integers(1, 5),
    nodes=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    rule=st.sampled_from(["density=0.05", "density=0.4", "kappa=1.5", "threshold=2.0"]),
)
def test_result_is_the_dense_mean_at_the_union_of_the_mask_nodes_masks(
    numel: int, ranks: int, nodes: int, seed: int, rule: str
) -> None:
    (stage,) = Codec.parse(f"importance(mask_nodes={nodes}, {rule})").stages
    assert isinstance(stage, Importance)
    gradients, weights = drawn(ranks, numel, seed), drawn(1, numel, seed + 1)[0]
    mean = agree_equal(simulate(stage, gradients, weights=weights, seed=seed, step=3))
    chosen = mask_nodes(Context(Spec(numel), {}, seed=seed, step=3).shared_key(), nodes, ranks)
    kept = stage.kept(numel, stage.density or 1.0)
    union = set().union(*(own_mask(stage, gradients[r] / ranks, weights, ranks, kept) for r in chosen))
    if stage.density is not None:
        assert kept == math.ceil(stage.density * numel)
        assert kept <= len(union) <= min(nodes, ranks) * kept
    expected = torch.zeros(numel)
    indices = torch.tensor(sorted(union))
    total = gradients[0] / ranks
    for gradient in gradients[1:]:
        total = total + gradient / ranks
    expected[indices] = total[indices]
    assert torch.equal(mean, expected)
    assert union


@settings(max_examples=30, deadline=None)
@given(ranks=st.integers(1, 4), seed=st.integers(0, 10**6), density=st.sampled_from([0.02, 0.3, 1.0]))
def test_what_is_given_is_delivered_or_held(ranks: int, seed: int, density: float) -> None:
    slots, given_sum, delivered = None, torch.zeros(77, dtype=torch.float64), torch.zeros(77, dtype=torch.float64)
    for step in range(6):
        gradients = drawn(ranks, 77, seed + step)
        outcome = simulate(Importance(density=density), gradients, slots=slots, step=step, weights=torch.ones(77))
        slots = outcome.slots
        given_sum += sum(g.double() for g in gradients) / ranks
        delivered += agree_equal(outcome).double()
    assert slots is not None
    held = sum(s.residual.double() for s in slots if s.residual is not None)
    torch.testing.assert_close(delivered + held, given_sum, atol=1e-5, rtol=1e-5)


def test_mask_nodes_are_distinct_and_all_sets_equally_likely() -> None:
    """Chi-square over the 10 pairs of 5 ranks, 9 degrees of freedom: 33.7 is exceeded with probability 1e-4."""
    counts: dict[tuple[int, ...], int] = {}
    steps = 5000
    for step in range(steps):
        nodes = tuple(mask_nodes(Context(Spec(1), {}, seed=11, step=step).shared_key(), 2, 5))
        assert len(set(nodes)) == 2
        counts[nodes] = counts.get(nodes, 0) + 1
    assert len(counts) == 10
    assert sum((count - steps / 10) ** 2 / (steps / 10) for count in counts.values()) < 33.7


def test_no_more_mask_nodes_than_ranks() -> None:
    assert mask_nodes(5, 7, 3) == [0, 1, 2]


def test_masking_without_momentum_is_refused() -> None:
    with pytest.raises(CodecError, match=r"without momentum there is none; add momentum=0\.9"):
        Codec.parse("iwp(masking=true)")
    assert Codec.parse("iwp(masking=false)") == Codec.parse("iwp")


@pytest.mark.parametrize("masking", ["true", "false"])
def test_density_one_with_momentum_is_dense_momentum_sgd(masking: str) -> None:
    ranks, steps, rate = 3, 12, 0.1
    codec = Codec.parse(f"importance(density=1.0, momentum=0.9, masking={masking})")
    weights, reference = torch.zeros(40), torch.zeros(40, requires_grad=True)
    optimiser = torch.optim.SGD([reference], lr=rate, momentum=0.9)
    slots = None
    for step in range(steps):
        targets = drawn(ranks, 40, step)
        outcome = simulate(codec, [weights - t for t in targets], slots=slots, step=step, weights=weights)
        slots = outcome.slots
        reference.grad = torch.stack([reference.detach() - t for t in targets]).mean(0)
        optimiser.step()
        weights = weights - rate * outcome.means[0]
    torch.testing.assert_close(weights, reference.detach(), atol=1e-5, rtol=1e-5)


def test_velocity_is_forgotten_where_numbers_travelled_and_kept_elsewhere() -> None:
    gradients, weights = drawn(2, 50, 4), torch.ones(50)
    slots = simulate(Importance(density=0.1, momentum=0.5), gradients, weights=weights).slots
    outcome = simulate(Importance(density=0.1, momentum=0.5, masking=False), gradients, weights=weights)
    travelled = outcome.means[0] != 0
    for rank, slot in enumerate(slots):
        velocity = slot.states[0]["velocity"]
        assert bool((velocity[travelled] == 0).all())
        assert torch.equal(velocity[~travelled], gradients[rank][~travelled] / 2)
        assert torch.equal(outcome.slots[rank].states[0]["velocity"], gradients[rank] / 2)


def test_momentum_of_held_numbers_builds_up_as_in_the_formula() -> None:
    """u = m u + g, v = v + u for a number that never travels."""
    codec, weights = Codec.parse("importance(density=0.01, momentum=0.9)"), torch.ones(100)
    slots, u, v = None, 0.0, 0.0
    for step in range(5):
        gradient = torch.full((100,), 0.01)
        gradient[7] = 100.0
        slots = simulate(codec, [gradient], slots=slots, step=step, weights=weights).slots
        u = 0.9 * u + 0.01
        v += u
    assert slots is not None
    assert slots[0].residual is not None
    assert float(slots[0].residual[3]) == pytest.approx(v, rel=1e-5)


def test_local_clipping_limits_each_ranks_norm() -> None:
    ranks = 4
    gradients = [g * scale for g, scale in zip(drawn(ranks, 64, 0), (100.0, 1e-3, 1e25, 0.0), strict=True)]
    mean = simulate(Importance(density=1.0, clip=2.0), gradients, weights=torch.ones(64)).means[0]
    limit = 2.0 / math.sqrt(ranks)
    expected = sum(g.double() * min(1.0, limit / max(float(g.double().norm()), 1e-30)) for g in gradients) / ranks
    torch.testing.assert_close(mean.double(), expected, atol=1e-7, rtol=1e-5)


def test_warm_up_lowers_the_density_by_equal_factors() -> None:
    stage, numel = Importance(density=1 / 64, warmup=4, mask_nodes=1), 6400
    slots, sent = None, []
    for step in range(7):
        outcome = simulate(stage, drawn(2, numel, step), slots=slots, step=step, weights=torch.ones(numel))
        slots = outcome.slots
        sent.append(slots[0].notes["elements_sent"])
    assert sent == [1600, 800, 400, 200, 100, 100, 100]


def naive_step(
    gradients: list[Tensor], held: list[Tensor], weights: Tensor, kappa: float, nodes: list[int], ranks: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, mask, and which numbers lie so near a threshold that rounding decides: in fp64, as the formulas say."""
    v = [h + g.double() / ranks for g, h in zip(gradients, held, strict=True)]
    mask, near = torch.zeros(weights.numel(), dtype=torch.bool), torch.zeros(weights.numel(), dtype=torch.bool)
    for node in nodes:
        importances = ranks * v[node].abs() / (weights.double().abs() + weights.double().square().mean().sqrt())
        mean = importances.sum() / importances.numel()
        threshold = mean + kappa * ((importances - mean).square().sum() / importances.numel()).sqrt()
        mask |= importances > threshold if bool((importances > threshold).any()) else importances == importances.max()
        near |= (importances / threshold - 1).abs() < 1e-5
    for rank in range(ranks):
        held[rank] = torch.where(mask, torch.zeros(()).double(), v[rank])
    return torch.where(mask, torch.stack(v).sum(0), torch.zeros(()).double()), mask, near


@pytest.mark.parametrize(("kappa", "warmup"), [(3.0, 12), (3.0, 0), (0.2, 8)])
def test_masks_of_kappa_and_its_schedule_are_those_of_a_naive_implementation(kappa: float, warmup: int) -> None:
    codec, ranks, numel, nodes = Codec.parse(f"iwp(kappa={kappa}, warmup={warmup})"), 3, 400, 2
    weights, slots = drawn(1, numel, 77)[0], None
    held = [torch.zeros(numel, dtype=torch.float64) for _ in range(ranks)]
    first = math.log(4) - 1
    compared = 0
    for step in range(25):
        gradients = drawn(ranks, numel, 100 + step)
        outcome = simulate(codec, gradients, slots=slots, step=step, weights=weights, seed=5)
        slots = outcome.slots
        now = kappa if step >= warmup or kappa < first else first + (kappa - first) * step / warmup
        chosen = mask_nodes(Context(Spec(numel), {}, seed=5, step=step).shared_key(), nodes, ranks)
        mean, mask, near = naive_step(gradients, held, weights, now, chosen, ranks)
        assert not near.any(), "another seed: rounding decides here"
        assert torch.equal(agree_equal(outcome) != 0, mask)
        torch.testing.assert_close(outcome.means[0].double(), mean, rtol=1e-4, atol=1e-5)
        compared += int(mask.sum())
    assert compared > 25 * nodes


def test_the_warm_up_of_kappa_lowers_an_exponential_density_by_equal_factors() -> None:
    """I is exponential for exponential gradients and equal weights; the mask has 1/4 of it at first, then less."""
    stage, numel = Importance(kappa=3.0, warmup=4, mask_nodes=1), 200_000
    slots, sent = None, []
    for step in range(6):
        gradient = torch.rand(numel, generator=torch.Generator().manual_seed(step)).clamp_min(1e-9).log().neg()
        given = gradient if slots is None or slots[0].residual is None else gradient - slots[0].residual.view(-1)
        slots = simulate(stage, [given], slots=slots, step=step, weights=torch.ones(numel)).slots
        sent.append(slots[0].notes["elements_sent"] / numel)
    factor = (math.exp(-4.0) / 0.25) ** (1 / 4)
    expected = [0.25 * factor ** min(step, 4) for step in range(6)]
    assert sent == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("weights", [torch.zeros(30), torch.tensor([0.0, 1.0] * 15), torch.full((30,), 1e-44)])
@pytest.mark.parametrize("rule", ["density=0.1", "kappa=1.0", "threshold=0.5"])
def test_zero_weights_give_no_nan(weights: Tensor, rule: str) -> None:
    gradients = drawn(2, 30, 9)
    gradients[0][:10] = 0.0
    assert bool(torch.isfinite(importance(gradients[0], weights, 0.01)).all())
    outcome = simulate(f"importance({rule})", gradients, weights=weights)
    assert bool(torch.isfinite(agree_equal(outcome)).all())


def test_a_layer_of_zero_weights_falls_back_to_magnitude() -> None:
    gradient = drawn(1, 200, 2)[0]
    mean = simulate(Importance(density=0.05), [gradient], weights=torch.zeros(200)).means[0]
    assert mean.nonzero().view(-1).tolist() == sparse.largest(gradient, 10).tolist()


def test_importance_prefers_small_weights() -> None:
    weights = torch.ones(100)
    weights[42] = 0.01
    mean = simulate(Importance(density=0.01), [torch.ones(100)], weights=weights).means[0]
    assert mean.nonzero().view(-1).tolist() == [42]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_bad_number_reaches_every_rank_and_changes_no_state(bad: float, rank: int) -> None:
    codec, weights = Codec.parse("importance(density=0.05, mask_nodes=1, momentum=0.9, warmup=8)"), torch.ones(60)
    slots = simulate(codec, drawn(3, 60, 0), weights=weights).slots
    before = [Slot.from_state_dict(slot.state_dict()) for slot in slots]
    gradients = drawn(3, 60, 1)
    gradients[rank][30] = bad
    outcome = simulate(codec, gradients, slots=slots, step=1, weights=weights)
    assert not any(bool(torch.isfinite(mean).all()) for mean in outcome.means)
    for slot, old in zip(slots, before, strict=True):
        assert slot.residual is not None
        assert old.residual is not None
        assert torch.equal(slot.residual, old.residual)
        assert torch.equal(slot.states[0]["velocity"], old.states[0]["velocity"])
        assert slot.states[0]["steps"] == old.states[0]["steps"] == 1


@pytest.mark.parametrize("cut", [1, 3, 6])
def test_saved_state_continues_bit_for_bit(cut: int) -> None:
    codec, weights = Codec.parse("importance(density=0.05, momentum=0.9, warmup=4)"), drawn(1, 90, 5)[0]

    def run(slots: list[Slot] | None, first: int, last: int) -> tuple[list[Slot], list[Tensor]]:
        means = []
        for step in range(first, last):
            outcome = simulate(codec, drawn(2, 90, step), slots=slots, step=step, weights=weights)
            slots = outcome.slots
            means.append(outcome.means[0])
        assert slots is not None
        return slots, means

    slots, _ = run(None, 0, cut)
    saved = [Slot.from_state_dict(slot.state_dict()) for slot in slots]
    _, straight = run(slots, cut, 8)
    _, resumed = run(saved, cut, 8)
    assert all(torch.equal(a, b) for a, b in zip(straight, resumed, strict=True))


@pytest.mark.parametrize(
    "tail", ["integers(bits=8)", "qsgd(bits=4)", "nuqsgd(bits=4) | huffman", "fp16", "topk(density=0.5)"]
)
@pytest.mark.parametrize("reduction", [None, "ring"])
def test_what_is_chosen_can_travel_in_fewer_bits(tail: str, reduction: str | None) -> None:
    """The number of chosen values is only known in the step, and every stage behind must learn it."""
    codec = Codec.parse("importance(kappa=1.0)") | tail
    slots = None
    given_sum, delivered = torch.zeros(500, dtype=torch.float64), torch.zeros(500, dtype=torch.float64)
    for step in range(3):
        gradients = drawn(3, 500, step)
        outcome = simulate(codec, gradients, slots=slots, step=step, weights=torch.ones(500), reduction=reduction)
        slots = outcome.slots
        given_sum += sum(g.double() for g in gradients) / 3
        delivered += agree_equal(outcome).double()
    assert slots is not None
    held = sum(s.residual.double() for s in slots if s.residual is not None)
    torch.testing.assert_close(delivered + held, given_sum, atol=3e-2 if tail == "fp16" else 1e-4, rtol=1e-4)


def test_sizes_are_expectations_near_the_truth() -> None:
    """Equal weights make the masks independent; small weights, which all ranks share, would make them overlap."""
    codec, shape, ranks = Codec.parse("iwp"), (128, 128), 4
    outcome = simulate(codec, [g.view(shape) for g in drawn(ranks, 128 * 128, 0)], weights=torch.ones(shape))
    size = codec.wire_bytes(shape, ranks)
    assert not size.exact
    assert sum(outcome.sent) / ranks == pytest.approx(size, rel=0.1)
    notes = outcome.slots[0].notes
    assert notes["elements"] / notes["elements_sent"] == pytest.approx(32.3, rel=0.1)


def test_everything_travels_at_density_one_without_masks() -> None:
    codec = Codec.parse("importance(density=1.0)")
    outcome = simulate(codec, drawn(3, 31, 0), weights=torch.ones(31))
    size = codec.wire_bytes(31, 3)
    assert size.exact
    assert outcome.sent == [size] * 3


def test_weights_are_needed() -> None:
    with pytest.raises(CodecError, match="pass weights="):
        simulate("iwp", drawn(2, 10, 0))


@pytest.mark.parametrize("options", ["density=0.1, threshold=1.0", "kappa=1.0, density=0.1", "threshold=1.0, warmup=5"])
def test_contradictory_options_are_refused(options: str) -> None:
    with pytest.raises(CodecError, match="give"):
        Codec.parse(f"importance({options})")


@pytest.mark.parametrize(
    "text",
    [
        "iwp",
        "iwp(threshold=0.5)",
        "iwp(kappa=2.5, warmup=300)",
        "importance",
        "importance(kappa=2.0, mask_nodes=3)",
        "dgc",
        "signsgd",
    ],
)
def test_text_form_reads_back(text: str) -> None:
    codec = Codec.parse(text)
    assert Codec.parse(str(codec)) == codec


def test_a_changed_loss_scale_rescales_the_velocity() -> None:
    slots = simulate(Importance(density=0.1, momentum=0.9), drawn(2, 40, 0), weights=torch.ones(40)).slots
    velocity = slots[0].states[0]["velocity"].clone()
    slots[0].rescale(0.5)
    assert torch.equal(slots[0].states[0]["velocity"], velocity * 0.5)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (2, 0, 4)])
@pytest.mark.parametrize("ranks", [1, 3])
def test_any_shape(shape: tuple[int, ...], ranks: int) -> None:
    gradients = [torch.ones(shape) for _ in range(ranks)]
    outcome = simulate("iwp(momentum=0.9)", gradients, weights=torch.ones(shape))
    assert agree_equal(outcome).shape == shape


def delivered_of_dense_momentum(codec: str) -> float:
    """What 100 steps of a constant gradient deliver, in parts of what dense momentum SGD would have moved."""
    gradients, weights, slots = drawn(2, 512, 7), torch.ones(512), None
    velocity = moved = delivered = torch.zeros(512)
    for step in range(100):
        outcome = simulate(codec, gradients, slots=slots, step=step, weights=weights)
        slots, delivered = outcome.slots, delivered + outcome.means[0]
        velocity = 0.9 * velocity + torch.stack(gradients).mean(0)
        moved = moved + velocity
    return float((delivered @ moved) / moved.square().sum())


def test_the_preset_keeps_momentum_unless_it_is_asked_to_mask() -> None:
    """Masking takes the velocity from elements that are sent often, so that momentum itself is lost."""
    assert delivered_of_dense_momentum("iwp(density=1/4, momentum=0.9)") > 0.9
    assert delivered_of_dense_momentum("iwp(density=1/4, momentum=0.9, masking=true)") < 0.6
    assert str(Codec.parse("iwp(density=1/4)")) == "importance(density=0.25)"
