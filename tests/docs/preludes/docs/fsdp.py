"""What the page on FSDP takes for granted before each of its blocks: a group of one process, which is all replicas."""

import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh as init_device_mesh
from torch.distributed.fsdp import fully_shard as fully_shard

import thinwire as thinwire

if not dist.is_initialized():
    dist.init_process_group("gloo", init_method=Path("group").resolve().as_uri(), rank=0, world_size=1)
replicas, shards = 1, 1
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
warnings.filterwarnings("ignore", message=".*one process trains alone.*")
