"""A rank that dies or stops is named by the error of every other rank, for every chain."""

import os
import signal
from datetime import timedelta
from typing import Any

import pytest
import torch

import thinwire
from tests.ddp.cases import ddp, loss_of, net, raised, train
from tests.distributed.processes import run_ranks
from thinwire.worlds.tcp import presence

CHAINS = ("gradiveq", "powersgd", "iwp", "qsgd(bits=4)", "topk(density=0.1)")


def lose_the_last_rank(rank: int, ranks: int, how: int) -> dict[str, str]:
    """What each chain's next step says when the last rank is lost in the middle of a step of the first chain."""
    presence._PONG_TIMEOUT = 2.0
    models = {chain: ddp(net(), bucket_cap_mb=0.01) for chain in CHAINS}
    handles = {chain: thinwire.attach(model, chain, timeout=timedelta(seconds=4)) for chain, model in models.items()}
    for model in models.values():
        train(model, rank, range(3))
    if rank == ranks - 1:
        first = handles[CHAINS[0]].engine
        right = first.average

        def last(pieces: Any, world: Any, whole: Any = None) -> None:
            if any(piece.name == "second.weight" for piece in pieces):
                os.kill(os.getpid(), how)
            right(pieces, world, whole)

        first.average = last  # type: ignore[method-assign]
    return {chain: raised(lambda: loss_of(model, rank, 3).backward()) for chain, model in models.items()}  # noqa: B023


@pytest.mark.distributed
@pytest.mark.timeout(200)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_every_survivor_names_the_lost_rank(how: int) -> None:
    for rank, said in enumerate(run_ranks(3, lose_the_last_rank, how, dying=1, seconds=150)):
        for chain, message in said.items():
            assert message.startswith(f"WorldError: rank {rank} of 3: "), (chain, message)
            named = "rank 2 is gone" if how == signal.SIGKILL else "rank 2 does not answer"
            assert named in message, (chain, message)


def lose_a_rank_of_a_host(rank: int, ranks: int) -> str:
    """Rank 3 dies when it sends to the other host; its own host and the other carrier wait for it too."""
    model = ddp(net(), bucket_cap_mb=0.01)
    handle = thinwire.attach(model, "qsgd(bits=4)", local_size=2, timeout=timedelta(seconds=4))
    train(model, rank, range(2))
    if rank == ranks - 1:
        handle.engine.average = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    return raised(lambda: loss_of(model, rank, 2).backward())


@pytest.mark.distributed
@pytest.mark.timeout(120)
def test_ranks_that_share_hosts_name_a_lost_one_by_its_rank_among_all() -> None:
    for rank, said in enumerate(run_ranks(4, lose_a_rank_of_a_host, dying=1)):
        assert said.startswith(f"WorldError: rank {rank} of 4: "), said
        assert "rank 3 is gone" in said, said


def lose_a_rank_without_a_handle(rank: int, ranks: int) -> str:
    x = torch.randn(2000, generator=torch.Generator().manual_seed(rank))
    thinwire.average(x, "fp16")
    if rank == ranks - 1:
        os._exit(1)
    return raised(lambda: thinwire.average(x, "fp16", step=1))


@pytest.mark.distributed
@pytest.mark.timeout(120)
def test_a_lost_rank_is_named_without_a_handle_too() -> None:
    for rank, said in enumerate(run_ranks(3, lose_a_rank_without_a_handle, dying=1)):
        assert said.startswith(f"WorldError: rank {rank} of 3: AllReduce failed; rank 2 is gone"), said
