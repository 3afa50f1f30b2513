"""Work memory is used again in every step; whatever a chain keeps must not lie in it."""

import itertools
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import thinwire
from tests.contract.rows import ROWS, Poisoned, gradients, weights
from thinwire.core import buffers
from thinwire.core.average import average
from thinwire.core.buffers import Buffers
from thinwire.worlds.simulated import run

RANKS = 3
SHAPE = (19, 3, 3, 3)
# chains that learn something in their first steps and use it in later ones
LEARNING = [
    "pca(ratio=4, warmup=1, sample=2, reuse=4)",
    "pca(ratio=4, warmup=0, sample=2, reuse=4, limit=0.1, travel='qsgd(bits=8)')",
    "powersgd(rank=2, warmup=1)",
    "momentum(beta=0.9) | topk(density=0.1)",
    "delay(steps=2) | qsgd(bits=4)",
    "feedback(beta=0.5) | topk(density=0.1)",
    "feedback(keep=bf16) | topk(density=0.1)",
]


def trained(
    row: str, memory: Sequence[Buffers], in_place: bool = False
) -> tuple[list[Tensor], list[dict[str, object]]]:
    codec = thinwire.Codec.parse(row)
    slots = [thinwire.Slot() for _ in range(RANKS)]
    means = []
    for step in range(7):
        rounds = []
        for rank, gradient in enumerate(gradients(RANKS, SHAPE, seed=step)):
            memory[rank].reset()
            turn = thinwire.StepInfo(rank, RANKS, 1, step, measure=step % 2 == 0, buffers=memory[rank])
            rounds.append(average(codec, gradient, slots[rank], turn, weights(SHAPE), gradient if in_place else None))
        means += [mean.clone() for mean in run(rounds)[0]]
    return means, [slot.state_dict() for slot in slots]


@pytest.mark.parametrize("worth", [1 << 20, 1], ids=["residuals are copied", "residuals stay where they are"])
@pytest.mark.parametrize("row", ROWS + LEARNING)
def test_nothing_that_is_kept_lies_in_work_memory(row: str, worth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, kept = trained(row, [Buffers() for _ in range(RANKS)])
    monkeypatch.setattr(buffers, "_WORTH_KEEPING", worth)
    found, kept_now = trained(row, [Poisoned() for _ in range(RANKS)])
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    for a, b in zip(kept, kept_now, strict=True):
        for key in ("residual", "states"):
            torch.testing.assert_close(a[key], b[key], rtol=0, atol=0)


@pytest.mark.parametrize("row", ROWS + LEARNING)
def test_a_mean_may_take_the_place_of_the_gradient(row: str) -> None:
    expected, _ = trained(row, [Buffers() for _ in range(RANKS)])
    found, _ = trained(row, [Poisoned() for _ in range(RANKS)], in_place=True)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


@given(st.lists(st.lists(st.integers(0, 100_000), max_size=12), min_size=2, max_size=4))
def test_pieces_do_not_overlap_and_lie_in_blocks_that_stay(steps: list[list[int]]) -> None:
    memory, cpu, kept = Buffers(), torch.device("cpu"), []
    for sizes in [*steps, steps[-1]]:
        memory.reset()
        pieces = [memory.empty(n, (torch.uint8, torch.int16, torch.float32)[n % 3], cpu) for n in sizes]
        assert [piece.numel() for piece in pieces] == sizes
        assert all(piece.data_ptr() % 64 == 0 for piece in pieces if piece.numel())
        spans = sorted((piece.data_ptr(), piece.nbytes) for piece in pieces if piece.numel())
        assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(spans))
        kept.append([block.data_ptr() for block in memory.blocks])
    for before, after in itertools.pairwise(kept):
        assert after[: len(before)] == before
    assert kept[-1] == kept[-2]  # the same pieces again take nothing new
