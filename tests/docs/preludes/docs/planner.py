"""What the page on the planner takes for granted: a group of one process, a DDP model and its optimizer."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import thinwire as thinwire

if not dist.is_initialized():
    dist.init_process_group("gloo", init_method=Path("group").resolve().as_uri(), rank=0, world_size=1)
ddp_model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.1)
inputs = torch.randn(8, 64)
