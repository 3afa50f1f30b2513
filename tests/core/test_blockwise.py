"""A chain behind an isometry works block by block: the same bits as all at once, sooner."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.contract.rows import gradients
from thinwire import Codec, Slot, StepInfo, simulate
from thinwire.core import shards, source
from thinwire.core.average import average
from thinwire.core.blockwise import Blockwise
from thinwire.core.fast import BlockCoder
from thinwire.core.ops import PipelinedExchange
from thinwire.core.reducers import sharded
from thinwire.core.source import Source
from thinwire.core.spec import Spec
from thinwire.stages import fourier
from thinwire.worlds.simulated import Outcome, run

CHAINS = [
    "fft(chunk=64) | topk(density=0.2) | rangefloat(bits=8)",
    "fft(chunk=16) | qsgd(bits=4, bucket=32)",
    "dct(chunk=64) | topk(density=0.3)",
    "feedback(keep=bf16) | fft(chunk=64) | topk(density=0.2)",
    "feedback(keep=bf16) | dct(chunk=32) | topk(density=0.1) | bf16",
    "feedback(keep=off) | fft(chunk=64) | sign(bucket=16)",
    "feedback(beta=0.5) | fft(chunk=64) | topk(density=0.2)",
]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fourier, "_BLOCK", 128)


def three_steps(chain: str, ranks: int, numel: int) -> Outcome:
    slots = None
    for step in range(3):
        given = gradients(ranks, (numel,), seed=step)
        outcome = simulate(chain, given, slots=slots, step=step, reduction="sharded")
        slots = outcome.slots
    return outcome


def assert_same(outcome: Outcome, expected: Outcome) -> None:
    assert outcome.sent == expected.sent
    for mine, theirs in zip(outcome.means, expected.means, strict=True):
        assert torch.equal(mine, theirs)
    for held, other in zip(outcome.slots, expected.slots, strict=True):
        assert held.in_sum_space == other.in_sum_space
        assert (held.residual_data is None) == (other.residual_data is None)
        assert (
            held.residual_data is None
            or other.residual_data is None
            or torch.equal(held.residual_data, other.residual_data)
        )


@pytest.mark.parametrize("long", [False, True], ids=["at once", "in hops and slices"])
@pytest.mark.parametrize(("ranks", "numel"), [(1, 700), (2, 1000), (3, 1030), (4, 4096), (5, 6), (3, 1031)])
@pytest.mark.parametrize("chain", CHAINS)
def test_blocks_change_nothing(chain: str, ranks: int, numel: int, long: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if long:
        monkeypatch.setattr(sharded, "LONG", 1)
        monkeypatch.setattr(shards, "SLICE", 40)
        monkeypatch.setattr(source, "_WORTH_SPLITTING", 1)
    by_blocks = three_steps(chain, ranks, numel)
    monkeypatch.setattr(fourier.Chunked, "fast", lambda self, spec: None)
    assert_same(by_blocks, three_steps(chain, ranks, numel))


def test_the_first_message_leaves_before_the_rest_is_transformed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded, "LONG", 1)
    transformed: list[int] = []
    forward = fourier.FFT.forward

    def counted(self: fourier.FFT, rows: Any, owed: Any, out: Any, ranks: int) -> None:
        transformed.append(rows.numel())
        forward(self, rows, owed, out, ranks)

    monkeypatch.setattr(fourier.FFT, "forward", counted)
    codec = Codec.parse("fft(chunk=64) | topk(density=0.1)")
    op = average(codec, torch.randn(4096), Slot(), StepInfo(0, 4, reduction="sharded")).send(None)
    assert isinstance(op, PipelinedExchange)
    assert not transformed
    op.next_message(0, 0)
    assert sum(transformed) == 1024  # a shard


WIRES = [
    "fft(chunk=64) | topk(density=0.2) | rangefloat(bits=8)",
    "dct(chunk=64) | topk(density=0.05)",
    "feedback(keep=fp32) | fft(chunk=64) | qsgd(bits=4)",
    "fft(chunk=64) | sign",
    "fft(chunk=64) | threshold(value=0.5)",
]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("least", [1, 1 << 16])  # numbers that a transform divides as it reads them
@pytest.mark.parametrize("at", [777, 999])  # in a chunk, and the last one
@pytest.mark.parametrize("chain", WIRES)
def test_what_is_not_finite_reaches_everyone_and_changes_no_state(
    chain: str, at: int, bad: float, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_WORTH_SPLITTING", least)
    first = simulate(chain, gradients(3, (1000,)), reduction="sharded")
    before = [slot.residual_data.clone() for slot in first.slots if slot.residual_data is not None]
    given = gradients(3, (1000,), seed=1)
    given[1][at] = bad
    second = simulate(chain, given, slots=first.slots, step=1, reduction="sharded")
    assert not any(bool(torch.isfinite(mean).all()) for mean in second.means)
    for slot, held in zip(second.slots, before, strict=True):
        assert slot.residual_data is not None
        assert torch.equal(slot.residual_data, held)


@pytest.mark.parametrize("chain", CHAINS)
def test_a_mean_may_take_the_place_of_the_gradient(chain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded, "LONG", 1)
    monkeypatch.setattr(shards, "SLICE", 40)
    monkeypatch.setattr(source, "_WORTH_SPLITTING", 1)
    codec, ranks = Codec.parse(chain), 3

    def averaged(in_place: bool) -> list[Tensor]:
        slots, means = [Slot() for _ in range(ranks)], list[Tensor]()
        for step in range(2):
            given = gradients(ranks, (1500,), seed=step)
            turns = [StepInfo(r, ranks, 0, step, reduction="sharded") for r in range(ranks)]
            outs = given if in_place else [torch.empty_like(g) for g in given]
            rounds = [
                average(codec, g, s, t, None, out) for g, s, t, out in zip(given, slots, turns, outs, strict=True)
            ]
            means += run(rounds)[0]
        return means

    assert all(torch.equal(a, b) for a, b in zip(averaged(True), averaged(False), strict=True))


def blocks_of(x: Tensor) -> Blockwise:
    fast = fourier.FFT(chunk=64).fast(Spec(x.numel()))
    assert isinstance(fast, BlockCoder)
    assert fast.length == 128
    return Blockwise(fast, Source(x), None, torch.empty_like(x))


def test_an_empty_range_is_no_block() -> None:
    blocks = blocks_of(torch.randn(400))
    blocks.set_output(blocks.values, torch.empty(400))
    for low, high in ((0, 400), (400, 400), (300, 300)):
        blocks.range(low, high)
        blocks.arrived(low, high)
    decoded = 0
    while blocks.on_idle():
        decoded += 1
    assert decoded == 4


def test_sums_are_decoded_block_by_block_as_they_arrive() -> None:
    x = torch.randn(400)
    blocks = blocks_of(x)
    blocks.range(0, 400)
    mean = torch.full((400,), 7.0)
    blocks.set_output(blocks.values, mean)
    blocks.arrived(100, 300)
    assert blocks.on_idle()  # 128 to 256
    assert not blocks.on_idle()
    assert torch.equal(mean[:128], torch.full((128,), 7.0))
    torch.testing.assert_close(mean[128:256], x[128:256], rtol=1e-5, atol=1e-5)
    blocks.arrived(0, 100)
    blocks.arrived(300, 400)
    while blocks.on_idle():
        pass
    torch.testing.assert_close(mean, x, rtol=1e-5, atol=1e-5)
    assert blocks.finite


def test_ranks_that_hear_shards_in_another_order_decode_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded, "LONG", 1)
    codec, ranks = Codec.parse("fft(chunk=64) | topk(density=0.3)"), 3
    given = gradients(ranks, (1500,))
    rounds = [average(codec, g, Slot(), StepInfo(r, ranks, reduction="sharded")) for r, g in enumerate(given)]
    means, _ = run(rounds)
    assert all(torch.equal(mean, means[0]) for mean in means)
