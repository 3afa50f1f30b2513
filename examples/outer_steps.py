"""Train alone for 10 steps, then exchange: torchrun --nproc-per-node 2 examples/outer_steps.py"""

import torch
import torch.distributed as dist
from torch import nn

import thinwire


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    handle = thinwire.attach_outer(model, optimizer, "diloco(codec='qsgd(bits=4)')", every=10, overlap=2)
    teacher = torch.randn(64, 10)
    torch.manual_seed(1 + dist.get_rank())  # each rank has batches of its own
    for _ in range(100):
        x = torch.randn(32, 64)
        loss = nn.functional.cross_entropy(model(x), (x @ teacher).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # after every tenth step the exchange begins
    handle.synchronize()  # all ranks end with equal weights
    metrics = handle.metrics()
    if dist.get_rank() == 0 and metrics is not None:
        x = torch.randn(512, 64)
        right = (model(x).argmax(1) == (x @ teacher).argmax(1)).float().mean()
        print(f"{right:.0%} right, {metrics.bytes_per_step:,.0f} bytes sent a step")
    handle.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
