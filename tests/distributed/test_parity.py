"""The simulated world and real processes over Gloo give the same results from the same code.

Compared bit for bit, except chains that use the backend's own all-reduce (summed), where only the order of
summation may differ.
"""

from typing import Any

import pytest
import torch

import thinwire
from tests.contract.rows import ROWS, gradients
from tests.distributed.processes import run_ranks
from thinwire.worlds.distributed import Distributed

SHAPE = (37, 11)
STEPS = 2


def reductions(codec: thinwire.Codec) -> list[str | None]:
    return [None, "sharded", "gathered", "ring"] if codec.wire else [None, "ring"]


def average_all(rank: int, ranks: int) -> dict[str, Any]:
    """Every row and reduction, two steps each, on this rank."""
    results = {}
    for row in ROWS:
        codec = thinwire.Codec.parse(row)
        for reduction in reductions(codec):
            slot = thinwire.Slot()
            for step in range(STEPS):
                mine = gradients(ranks, SHAPE, seed=step)[rank]
                mean = thinwire.average(mine, codec, slot=slot, seed=7, step=step, reduction=reduction)
            results[f"{row} {reduction}"] = mean.numpy()
    return results


def count_bytes(rank: int, ranks: int) -> dict[str, int]:
    counted = {}
    for row in ROWS:
        world = Distributed()
        turn = thinwire.Turn(rank, ranks)
        world.drive(thinwire.core.average.average(thinwire.Codec.parse(row), gradients(ranks, SHAPE)[rank], thinwire.Slot(), turn))
        counted[row] = world.sent
    return counted


@pytest.mark.distributed
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_processes_equal_the_simulation(ranks: int) -> None:
    real = run_ranks(ranks, average_all)
    for row in ROWS:
        codec = thinwire.Codec.parse(row)
        for reduction in reductions(codec):
            slots = None
            for step in range(STEPS):
                given = gradients(ranks, SHAPE, seed=step)
                outcome = thinwire.simulate(codec, given, slots=slots, seed=7, step=step, reduction=reduction)
                slots = outcome.slots
            for rank in range(ranks):
                ours = torch.from_numpy(real[rank][f"{row} {reduction}"])
                assert torch.equal(ours, torch.from_numpy(real[0][f"{row} {reduction}"])), f"{row} differs on rank {rank}"
                if codec.additive and reduction is None:
                    coarse = 2e-2 if "16" in row else 1e-5
                    assert torch.allclose(ours, outcome.means[rank], rtol=coarse, atol=coarse), row
                else:
                    assert torch.equal(ours, outcome.means[rank]), f"{row} {reduction} on rank {rank}"


@pytest.mark.distributed
def test_bytes_are_counted_alike() -> None:
    real = run_ranks(3, count_bytes)
    for row in ROWS:
        outcome = thinwire.simulate(row, gradients(3, SHAPE))
        assert [real[rank][row] for rank in range(3)] == outcome.sent, row


def use_without_group() -> None:
    thinwire.average(torch.zeros(3), "qsgd")


def test_without_a_process_group_one_sentence_says_what_to_do() -> None:
    with pytest.raises(thinwire.WorldError, match=r"call torch.distributed.init_process_group\(\) first"):
        use_without_group()


def half_the_world(rank: int, ranks: int) -> Any:
    """Two groups average at the same time, each for itself."""
    import torch.distributed as dist

    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = groups[rank // 2]
    return thinwire.average(torch.full((5,), float(rank)), "qsgd(bits=8) | huffman", group=mine, reduction="ring").numpy()


@pytest.mark.distributed
def test_groups_of_ranks() -> None:
    results = run_ranks(4, half_the_world)
    assert torch.allclose(torch.from_numpy(results[0]), torch.full((5,), 0.5), atol=0.02)
    assert torch.allclose(torch.from_numpy(results[3]), torch.full((5,), 2.5), atol=0.05)
