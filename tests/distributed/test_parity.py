"""The simulated world and real processes over Gloo give the same results from the same code.

Compared bit for bit, except chains that use the backend's own all-reduce (summed, powersgd to agree, and pca before it
is ready), where only
the order of summation may differ.
"""

from typing import Any

import pytest
import torch
import torch.distributed as dist

import thinwire
from tests.contract.rows import ROWS, Poisoned, gradients, simulate, weights
from tests.distributed.processes import run_ranks
from thinwire.core import shards
from thinwire.core.average import average
from thinwire.core.reducers import sharded
from thinwire.worlds.distributed import Distributed
from thinwire.worlds.tcp import exchange

SHAPE = (37, 11)
STEPS = 2


def reductions(codec: thinwire.Codec) -> list[str | None]:
    return [None, "sharded", "gathered", "ring"] if codec.coders else [None, "ring"]


def average_all(rank: int, ranks: int) -> dict[str, Any]:
    """Every row and reduction, two steps each, on this rank: the mean and the bytes of the last step."""
    results, buffers = {}, Poisoned()  # as a process keeps them from one tensor and step to the next
    for row in ROWS:
        codec = thinwire.Codec.parse(row)
        for reduction in reductions(codec):
            slot = thinwire.Slot()
            for step in range(STEPS):
                world = Distributed(buffers=buffers)
                turn = thinwire.StepInfo(rank, ranks, 7, step, reduction, buffers=buffers)
                mean = world.drive(average(codec, gradients(ranks, SHAPE, seed=step)[rank], slot, turn, weights(SHAPE)))
            results[f"{row} {reduction}"] = (mean.numpy(), world.sent)
    results |= average_in_hops(rank, ranks)
    if ranks == 4:
        results["halves"] = average_halves(rank)
    return results


def average_in_hops(rank: int, ranks: int) -> dict[str, Any]:
    """The wire chains once more, as if their messages were long: in hops, in slices, and in frames."""
    results, world = {}, Distributed(buffers=Poisoned())
    sharded.LONG = shards.SLICE = exchange._FRAME_BYTES = 1
    for row in ROWS:
        codec, slot = thinwire.Codec.parse(row), thinwire.Slot()
        for step in range(STEPS if codec.coders else 0):
            turn = thinwire.StepInfo(rank, ranks, 7, step, "sharded", buffers=world.buffers)
            given = gradients(ranks, SHAPE, seed=step)[rank]
            mean = world.drive(average(codec, given, slot, turn, weights(SHAPE)))
            results[f"{row} hops"] = mean.numpy()
    return results


def average_halves(rank: int) -> Any:
    """Two groups average at the same time, each for itself."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    value, mine = torch.full((5,), float(rank)), groups[rank // 2]
    means = [
        thinwire.average(value, "qsgd(bits=8) | huffman", group=mine, reduction=reduction)
        for reduction in ("ring", "sharded", "gathered")
    ]
    return torch.stack([*means, thinwire.average(value, "none", group=mine)]).numpy()


@pytest.mark.distributed
@pytest.mark.timeout(240)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_processes_equal_the_simulation(ranks: int) -> None:
    real = run_ranks(ranks, average_all, seconds=200)
    for row in ROWS:
        codec = thinwire.Codec.parse(row)
        for reduction in reductions(codec):
            name, slots = f"{row} {reduction}", None
            for step in range(STEPS):
                given = gradients(ranks, SHAPE, seed=step)
                outcome = simulate(codec, given, slots=slots, seed=7, step=step, reduction=reduction)
                slots = outcome.slots
            means = [torch.from_numpy(real[rank][name][0]) for rank in range(ranks)]
            assert all(torch.equal(mean, means[0]) for mean in means), name
            assert [real[rank][name][1] for rank in range(ranks)] == outcome.sent, name
            if (codec.additive and reduction is None) or "powersgd" in row or "pca(" in row:
                coarse = 2e-2 if "16" in row else 1e-5
                assert torch.allclose(means[0], outcome.means[0], rtol=coarse, atol=coarse), name
            else:
                assert torch.equal(means[0], outcome.means[0]), name
            if reduction == "sharded" and "pca(" not in row and "powersgd" not in row:
                assert all(torch.equal(torch.from_numpy(real[r][f"{row} hops"]), means[0]) for r in range(ranks)), name
    if ranks == 4:
        for rank in range(ranks):
            assert abs(real[rank]["halves"] - (0.5 if rank < 2 else 2.5)).max() < 0.05


def use_without_group() -> None:
    thinwire.average(torch.zeros(3), "qsgd")


def test_without_a_process_group_one_sentence_says_what_to_do() -> None:
    with pytest.raises(thinwire.WorldError, match=r"call torch.distributed.init_process_group\(\) first"):
        use_without_group()
