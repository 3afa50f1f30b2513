"""What README and docstrings take for granted: a process group (of one process), models, and tensors to average."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

if not dist.is_initialized():
    dist.init_process_group("gloo", init_method=Path("group").resolve().as_uri(), rank=0, world_size=1)
net = torch.nn.Linear(64, 64)
ddp_model = DistributedDataParallel(torch.nn.Linear(64, 64))
inputs = torch.randn(8, 64)
gradient, step = torch.randn(64, 64), 0
