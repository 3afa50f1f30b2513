"""A rank that dies in the middle of a step is named by the ranks that exchange with it."""

import os
import signal
from typing import Any

import pytest

import thinwire
from tests.ddp.cases import raised
from tests.distributed.processes import run_ranks
from tests.fsdp.cases import loss_of, net, sharded, train


def lose_the_last_rank(rank: int, ranks: int, replicas: int) -> str:
    """What the next step says when the last rank is killed in it."""
    model = sharded(net(), replicas)
    handle: Any = thinwire.attach(model, "qsgd")
    train(model, rank, range(2))
    if rank == ranks - 1:
        handle._called = lambda reduce: os.kill(os.getpid(), signal.SIGKILL)
    return raised(lambda: loss_of(model, rank, 2).backward())


@pytest.mark.distributed
@pytest.mark.timeout(200)
def test_all_shards_name_a_lost_rank() -> None:
    for rank, said in enumerate(run_ranks(4, lose_the_last_rank, 1, dying=1, seconds=150)):
        assert said.startswith(f"WorldError: rank {rank} of 4: "), said
        assert "rank 3 is gone" in said
        assert f"[rank {rank}, step 2, averaging middle.0.weight, middle.0.bias]" in said


@pytest.mark.distributed
@pytest.mark.timeout(200)
def test_its_replica_names_a_lost_rank() -> None:
    """The ranks of other shards learn of it from torch's collectives, or when others end."""
    _, said, _ = run_ranks(4, lose_the_last_rank, 2, dying=1, seconds=150)
    assert said.startswith("WorldError: rank 0 of 2: "), said
    assert "rank 1 is gone" in said
    assert "its group: rank 0 is rank 1 of the job, rank 1 is rank 3 of the job]" in said
