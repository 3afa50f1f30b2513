"""Without DistributedDataParallel: torchrun --nproc-per-node 2 examples/plain_loop.py"""

import torch
import torch.distributed as dist
from torch import nn

import thinwire


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)  # all ranks begin with the same parameters
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = thinwire.GradientState()  # residuals live here: save state.state_dict() with the model
    teacher = torch.randn(64, 10)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(50):
        x = torch.randn(32, 64)
        loss = nn.functional.cross_entropy(model(x), (x @ teacher).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        thinwire.average_gradients(model, "sign", state)
        optimizer.step()
    metrics = state.metrics()
    if dist.get_rank() == 0 and metrics is not None:
        print(f"loss {loss.item():.2f}, {metrics.bytes_sent:,} bytes sent in the last step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
