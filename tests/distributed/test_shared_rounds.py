"""Several tensors whose rounds share collectives, in work memory that is spoilt between steps."""

import pytest
import torch

import thinwire
from tests.contract.rows import Poisoned, gradients, weights
from tests.distributed.processes import run_ranks
from thinwire.core.average import average
from thinwire.core.buffers import Buffers
from thinwire.core.coalesced import coalesced
from thinwire.worlds.distributed import Distributed

SHAPES = [(24, 16), (24, 16), (32, 12)]
CHAINS = [
    "pca(ratio=4, warmup=0, sample=2, reuse=9)",
    "powersgd(rank=2)",
    "alq(bits=4)",
    "importance(density=0.1)",
    "qsgd(bits=4)",
    "topk(density=0.1) | rangefloat(bits=8)",
]
STEPS = 6


def average_together(rank: int, ranks: int) -> dict[str, list[bytes]]:
    """The means of the last step, of tensors together in spoilt memory, and one by one in fresh memory."""
    results = {}
    for text in CHAINS:
        codec = thinwire.Codec.parse(text)
        for shared in (True, False):
            slots = [thinwire.Slot() for _ in SHAPES]
            world = Distributed(buffers=Poisoned() if shared else None)
            for step in range(STEPS):
                rounds = []
                for at, shape in enumerate(SHAPES):
                    given = gradients(ranks, shape, seed=10 * step + at)[rank]
                    buffers = world.buffers if shared else Buffers()
                    turn = thinwire.StepInfo(rank, ranks, at, step, buffers=buffers)
                    rounds.append(average(codec, given, slots[at], turn, weights(shape)))
                means = world.drive(coalesced(rounds)) if shared else [world.drive(one) for one in rounds]
            results[f"{text} {shared}"] = [mean.numpy().tobytes() for mean in means]
    return results


@pytest.mark.distributed
@pytest.mark.timeout(120)
def test_tensors_that_share_rounds_keep_what_they_learn() -> None:
    for found in run_ranks(2, average_together, seconds=100):
        for text in CHAINS:
            for together_, alone in zip(found[f"{text} True"], found[f"{text} False"], strict=True):
                a, b = (torch.frombuffer(bytearray(data), dtype=torch.float32) for data in (together_, alone))
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, msg=text)
