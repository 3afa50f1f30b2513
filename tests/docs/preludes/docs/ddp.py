"""What the page on DDP takes for granted before each of its blocks: a group of one process and a model of its own.

`handle` stays that of the block before, as it does for the reader.
"""

import warnings
from pathlib import Path
from types import SimpleNamespace

import rich as rich
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import thinwire as thinwire

warnings.filterwarnings("ignore", message=".*GradScaler.*")  # of a machine without an accelerator
if not dist.is_initialized():
    dist.init_process_group("gloo", init_method=Path("group").resolve().as_uri(), rank=0, world_size=1)
rank, n = 0, 1
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = net(torch.randn(4, 64)).sum()


def callback(metrics: thinwire.StepMetrics) -> None:
    assert metrics.bytes_sent >= 0


def SummaryWriter() -> SimpleNamespace:
    """TensorBoard's, without TensorBoard."""
    return SimpleNamespace(add_scalar=lambda name, value, step: None)
