"""Masks, factors and votes over Gloo equal those of the simulation."""

import socket
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from thinwire.core.slot import Slot
from thinwire.worlds.distributed import average
from thinwire.worlds.simulated import simulate

RANKS, SHAPE, STEPS = 3, (24, 30), 3
CHAINS = (
    "iwp(momentum=0.9, warmup=2)",
    "importance(density=1.0, momentum=0.9)",
    "importance(kappa=1.0) | integers(bits=8)",
    "feedback(keep=fp32) | momentum(beta=0.9)",
    "dgc(density=0.05)",
    "randomk(density=0.1)",
    "powersgd(rank=2, warmup=1)",
    "signsgd",
)


def gradient(rank: int, step: int) -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(97 * step + rank))


def work(rank: int, port: int, replies: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    means = []
    for chain in CHAINS:
        slot = Slot()
        for step in range(STEPS):
            mean = average(gradient(rank, step), chain, slot=slot, step=step, weights=torch.ones(SHAPE))
        means.append(mean.tolist())
    replies.put((rank, means))
    dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.mark.distributed
@pytest.mark.timeout(90)
def test_gloo_equals_the_simulation() -> None:
    context = mp.get_context("spawn")
    replies, port = context.Queue(), free_port()
    processes = [context.Process(target=work, args=(rank, port, replies), daemon=True) for rank in range(RANKS)]
    for process in processes:
        process.start()
    found = dict(replies.get(timeout=80) for _ in range(RANKS))
    for process in processes:
        process.join(10)
    for at, chain in enumerate(CHAINS):
        slots = None
        for step in range(STEPS):
            outcome = simulate(
                chain, [gradient(r, step) for r in range(RANKS)], slots=slots, step=step, weights=torch.ones(SHAPE)
            )
            slots = outcome.slots
        for rank in range(RANKS):
            assert found[rank][at] == found[0][at], chain
        torch.testing.assert_close(torch.tensor(found[0][at]), outcome.means[0], atol=1e-5, rtol=1e-4, msg=chain)
