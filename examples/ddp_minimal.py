"""Compressed gradients in one line: torchrun --nproc-per-node 2 examples/ddp_minimal.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))

    handle = thinwire.attach(model, "topk(density=0.05) | qsgd(bits=4)")  # the one line

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    teacher = torch.randn(64, 10)  # the same on every rank, before the data differ
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(100):
        x = torch.randn(32, 64)
        loss = nn.functional.cross_entropy(model(x), (x @ teacher).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    metrics = handle.metrics()
    if dist.get_rank() == 0 and metrics is not None:
        print(f"loss {loss.item():.2f}, {metrics.wire_ratio:.1f} times fewer bytes than fp32")
    handle.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
