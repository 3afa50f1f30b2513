"""Short runs whose checkpoints are kept: `python -m tests.golden.checkpoint_runs FILE` writes those of this version.

Versions differ, so that the file of a version is written once, by that version, and never again. Gradients need no
generator and do not depend on the weights, which stay as they are: every version sees the same ones.
"""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire

RANKS, STEPS = 2, 6
MATRIX, FLAT = (32, 32), (2, 512)  # the second one is too small for rank 4
RUNS: dict[str, list[tuple[int, ...]]] = {  # plans, and the shapes of the parameters
    "gradiveq(ratio=4, warmup=1, sample=2, reuse=100, travel='qsgd(bits=8)')": [MATRIX],
    "feedback(keep=bf16) | topk(density=0.1)": [MATRIX],
    "dgc(density=0.1, warmup=2)": [MATRIX],
    "powersgd(rank=4)": [MATRIX, FLAT],
    "alq": [MATRIX],
    "fftsgd(chunk=256)": [MATRIX],
    "iwp(density=0.1, momentum=0.9)": [MATRIX],
}

MEANT = {  # what these plans of 0.1.0 are called now that the defaults of presets have changed
    "gradiveq(ratio=4, warmup=1, sample=2, reuse=100, travel='qsgd(bits=8)')": (
        "gradiveq(ratio=4, warmup=1, sample=2, reuse=100, order=rows, travel='qsgd(bits=8)')"
    ),
    "fftsgd(chunk=256)": "fftsgd(chunk=256, transform=always)",
    "iwp(density=0.1, momentum=0.9)": "iwp(density=0.1, momentum=0.9, masking=true)",
}


def fixed(shape: tuple[int, ...], *numbers: int) -> Tensor:
    """Multiples of 1/64 between -8 and 8, others for other numbers."""
    salt = sum(prime * number for prime, number in zip((104_729, 1_299_709, 15_485_863), numbers, strict=False))
    count = torch.Size(shape).numel()
    return torch.tensor([((i * i * 7919 + salt * (i + 1)) % 1021 - 510) / 64 for i in range(count)]).view(shape)


class Weights(nn.Module):
    """Parameters whose gradients are what the model is given."""

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(fixed(shape, 7) for shape in shapes)

    def forward(self, gradients: list[Tensor]) -> Tensor:
        return torch.stack([(w * g).sum() for w, g in zip(self.weights, gradients, strict=True)]).sum()


def attached(plan: str) -> tuple[DistributedDataParallel, thinwire.Handle]:
    model = DistributedDataParallel(Weights(RUNS[plan]))
    return model, thinwire.attach(model, MEANT.get(plan, plan))


def averages(model: DistributedDataParallel, rank: int, steps: range) -> list[Tensor]:
    """The averaged gradients of these steps."""
    found: list[Tensor] = []
    for step in steps:
        model.zero_grad()
        gradients = [fixed(tuple(p.shape), step, rank, at) for at, p in enumerate(model.parameters())]
        model(gradients).backward()
        found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return found


def write(rank: int, ranks: int, path: str) -> None:
    saved: dict[str, Any] = {}
    for plan in RUNS:
        model, handle = attached(plan)
        averages(model, rank, range(STEPS))
        saved[plan] = handle.full_state_dict()
        handle.close()
    if rank == 0:
        torch.save(saved, path)
    dist.barrier()


if __name__ == "__main__":
    from tests.distributed.processes import run_ranks

    run_ranks(RANKS, write, str(Path(sys.argv[1]).resolve()), seconds=120)
