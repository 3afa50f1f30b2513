"""How a process ends while thinwire is attached: `python -m tests.ddp.endings MODE RANK RANKS STORE`."""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

import thinwire
from tests.ddp.cases import ddp, loss_of, net, train


def main() -> None:
    mode, rank, ranks, store = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=timedelta(seconds=20)
    )
    model = ddp(net(), bucket_cap_mb=0.01)
    thinwire.attach(model, "qsgd(bits=4)")
    train(model, rank, range(3))
    if mode == "raise" and rank == 0:

        def fail(gradient: Tensor) -> Tensor:
            raise ArithmeticError("in the middle of backward")

        model.module.first.weight.register_hook(fail)  # buckets of later layers are on their way
    if mode == "raise":
        loss_of(model, rank, 3).backward()
    print("the end", flush=True)  # nothing is closed


if __name__ == "__main__":
    main()
