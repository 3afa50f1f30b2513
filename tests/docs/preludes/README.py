"""What README takes for granted: a process group (of one process), a DDP model, and tensors to average."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

if not dist.is_initialized():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
ddp_model = DistributedDataParallel(torch.nn.Linear(64, 64))
gradient, step = torch.randn(64, 64), 0
