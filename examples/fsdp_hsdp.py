"""FSDP2 with two replicas, compressed between them: torchrun --nproc-per-node 4 examples/fsdp_hsdp.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import thinwire


def main() -> None:
    dist.init_process_group("gloo")
    # torchrun numbers the ranks host by host: each row of the mesh is a host, and each host has a replica
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    fully_shard(model, mesh=mesh)

    handle = thinwire.attach(model, "qsgd")  # the one line

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
        print(f"loss {loss.item():.2f}, {metrics.bytes_sent} bytes a step ({metrics.wire_ratio:.1f} times fewer)")
    handle.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
