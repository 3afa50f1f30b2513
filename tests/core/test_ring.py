"""The pipelined ring: the sum of an all-reduce, in equal messages, with work done while bytes travel."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.contract.rows import gradients
from thinwire import Codec, Slot, simulate
from thinwire.core.buffers import Buffers
from thinwire.core.fast import Parts
from thinwire.core.ops import Rounds, SendRecv
from thinwire.core.reducers import reduce
from thinwire.core.reducers.ring import ring_of_parts
from thinwire.core.reducers.work import Keep, Work
from thinwire.core.source import Source
from thinwire.worlds.simulated import run


class Doubled(Parts):
    """Parts of three numbers, sent twice as large; it notes what it did."""

    def __init__(self, values: Tensor) -> None:
        self.length, self.count = 3, values.numel() // 3
        self.values, self.total, self.done = values, torch.full_like(values, float("nan")), list[str]()

    def encode(self, low: int, high: int) -> Tensor:
        self.done.append("encode")
        return 2 * self.values[3 * low : 3 * high]

    def decode(self, values: Tensor, low: int, high: int) -> None:
        self.done.append("decode")
        self.total[3 * low : 3 * high] = values / 2

    def result(self) -> Tensor:
        return self.total


@settings(max_examples=40, deadline=None)
@given(count=st.integers(1, 20), ranks=st.integers(1, 6), seed=st.integers(0, 1000))
def test_every_rank_gets_the_sum_in_equal_messages(count: int, ranks: int, seed: int) -> None:
    tensors = list(torch.randn(ranks, 3 * count, generator=torch.Generator().manual_seed(seed)))
    results, sent = run([ring_of_parts(Doubled(x), rank, ranks) for rank, x in enumerate(tensors)])
    for (total, own), x in zip(results, tensors, strict=True):
        torch.testing.assert_close(total, torch.stack(tensors).sum(0))
        assert torch.equal(total, results[0][0])
        assert torch.equal(own, 2 * x)
    assert sent == [2 * (ranks - 1) * -(-count // ranks) * 3 * 4] * ranks


def test_parts_are_encoded_and_decoded_while_others_travel() -> None:
    ranks = 4
    parts = [Doubled(torch.randn(24)) for _ in range(ranks)]
    under_way: list[list[str]] = []

    def watched(rank: int) -> Rounds[tuple[Tensor, Tensor]]:
        rounds, reply = ring_of_parts(parts[rank], rank, ranks), None
        while True:
            try:
                op = rounds.send(reply)
            except StopIteration as end:
                result: tuple[Tensor, Tensor] = end.value
                return result
            assert isinstance(op, SendRecv)
            done = len(parts[rank].done)
            reply = yield op
            under_way.append(parts[rank].done[done:])

    run([watched(rank) for rank in range(ranks)])
    assert under_way == [["encode"]] * 4 * 3 + [["decode"]] * 4 * 3
    assert all(p.done == ["encode"] * 4 + ["decode"] * 4 for p in parts)


@pytest.mark.parametrize(("keep", "kept"), [("delivered", 1), ("remainder", 0)])
def test_elements_without_a_coder_are_summed_as_they_are(keep: Keep, kept: int) -> None:
    tensors = [torch.arange(7, dtype=torch.int32) * (rank + 1) for rank in range(3)]
    works = [
        Work((), Source(x.clone()), torch.empty_like(x), keep, rank, 3, Buffers()) for rank, x in enumerate(tensors)
    ]
    results, _ = run([reduce("ring", work) for work in works])
    for reduced, x in zip(results, tensors, strict=True):
        assert torch.equal(reduced.total, torch.arange(7, dtype=torch.int32) * 6)
        assert reduced.kept is not None
        assert torch.equal(reduced.kept, kept * x)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(
    "codec",
    [
        "pca(ratio=4, warmup=0, sample=4, reuse=9)",
        "feedback(keep=off) | pca(ratio=4, warmup=0, sample=4, reuse=9, order=filters, slice=50)",
        "pca(ratio=4, warmup=0, sample=4, reuse=9) | integers(bits=8)",
        "fp16",
        "none",
    ],
)
def test_the_ring_equals_the_all_reduce(codec: str, ranks: int) -> None:
    shape, g = (10, 6, 3, 3), torch.Generator().manual_seed(0)
    slots: dict[str, list[Slot] | None] = {"ring": None, "summed": None}
    for step in range(12):
        gradients = [torch.randn(shape, generator=g) for _ in range(ranks)]
        outcomes = {
            how: simulate(codec, gradients, slots=slots[how], step=step, reduction=how) for how in ("ring", "summed")
        }
        slots = {how: outcome.slots for how, outcome in outcomes.items()}
        ring_mean, mean = outcomes["ring"].means[0], outcomes["summed"].means[0]
        tolerance = 2e-3 if codec == "fp16" else 1e-4
        torch.testing.assert_close(ring_mean, mean, rtol=tolerance, atol=tolerance)
        assert all(torch.equal(m, ring_mean) for m in outcomes["ring"].means)
    size = Codec.parse(codec).wire_bytes(shape, ranks, "ring")
    assert size.exact
    assert outcomes["ring"].sent == [size] * ranks


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("text", ["integers(bits=8)", "integers(bits=5)", "pca(ratio=4, warmup=0, sample=2, reuse=9)"])
def test_parts_add_up_to_the_whole(text: str, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    codec, shape, outcomes = Codec.parse(text), (61, 24), []
    for elements in (1 << 18, 32):
        monkeypatch.setattr("thinwire.core.reducers.pipelined.ELEMENTS", elements)
        slots = None
        for step in range(4):
            outcome = simulate(codec, gradients(ranks, shape, seed=step), slots=slots, step=step)
            slots = outcome.slots
        assert outcome.sent == [codec.wire_bytes(shape, ranks)] * ranks
        outcomes.append(outcome)
    torch.testing.assert_close(outcomes[0].means[0], outcomes[1].means[0], rtol=1e-6, atol=1e-6)
    if "integers" in text:  # products of matrices may round differently in parts, integers may not
        assert torch.equal(outcomes[0].means[0], outcomes[1].means[0])
