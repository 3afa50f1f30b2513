"""A codec for each kind of layer, changed during training: torchrun --nproc-per-node 2 examples/plan_by_layer.py"""

import rich
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire

PLAN = {
    "*.bias": "none",
    "conv.*": "bf16",
    "head.*": {"codec": "nuqsgd(bits=4) | huffman", "min_numel": 4096},
    "*": "qsgd(bits=4)",
}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 64, 3, padding=1)
        self.hidden = nn.Linear(64 * 16, 128)
        self.head = nn.Linear(128, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = nn.functional.adaptive_avg_pool2d(torch.relu(self.conv(x)), 4).flatten(1)
        logits: torch.Tensor = self.head(torch.relu(self.hidden(pooled)))
        return logits


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(), bucket_cap_mb=1)
    handle = thinwire.attach(model, PLAN, start=5, check=10)  # five steps uncompressed; ranks compared every ten
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(30):
        if step == 20:  # no new DDP object, and what is held for a parameter stays held
            handle.use({"hidden.weight": "topk(density=0.02)", **PLAN})  # the first rule that matches decides
        optimizer.zero_grad()
        images, labels = torch.randn(16, 3, 8, 8), torch.randint(100, (16,))
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        for decision in handle.plan:
            print(f"{decision.name:14} {decision.codec!s:60} {decision.why}")
        rich.print(handle.report())
    handle.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
