"""What the page on outer steps takes for granted before each of its blocks: a group of one process, and a model.

`handle` stays that of the block before, as it does for the reader.
"""

from pathlib import Path

import torch
import torch.distributed as dist

import thinwire as thinwire

if not dist.is_initialized():
    dist.init_process_group("gloo", init_method=Path("group").resolve().as_uri(), rank=0, world_size=1)
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4)
inputs = torch.randn(4, 64)
