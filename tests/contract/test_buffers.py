"""Work memory is used again in every step; whatever a chain keeps must not lie in it."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import thinwire
from tests.contract.rows import ROWS, Poisoned, gradients, weights
from thinwire.core.average import Turn, average
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
    row: str, buffers: Sequence[Buffers], in_place: bool = False
) -> tuple[list[Tensor], list[dict[str, object]]]:
    codec = thinwire.Codec.parse(row)
    slots = [thinwire.Slot() for _ in range(RANKS)]
    means = []
    for step in range(7):
        rounds = []
        for rank, given in enumerate(gradients(RANKS, SHAPE, seed=step)):
            buffers[rank].reset()
            turn = Turn(rank, RANKS, 1, step, measure=step % 2 == 0, buffers=buffers[rank])
            rounds.append(average(codec, given, slots[rank], turn, weights(SHAPE), given if in_place else None))
        means += [mean.clone() for mean in run(rounds)[0]]
    return means, [slot.state_dict() for slot in slots]


@pytest.mark.parametrize("row", ROWS + LEARNING)
def test_nothing_that_is_kept_lies_in_work_memory(row: str) -> None:
    expected, kept = trained(row, [Buffers() for _ in range(RANKS)])
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


def test_pieces_do_not_overlap_and_come_again_after_a_reset() -> None:
    buffers, addresses = Buffers(), []
    for _ in range(3):
        wanted = ((5, torch.float32), (0, torch.uint8), (7, torch.int16), (3, torch.float32))
        pieces = [buffers.empty(numel, dtype, torch.device("cpu")) for numel, dtype in wanted]
        for value, piece in enumerate(pieces):
            piece.fill_(value)
        assert [piece.tolist() for piece in pieces] == [[0.0] * 5, [], [2] * 7, [3.0] * 3]
        addresses.append([piece.data_ptr() for piece in pieces])
        buffers.reset()
    assert addresses[1] == addresses[2]
