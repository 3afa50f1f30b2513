"""Which rank this process is, and how it joins the others."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist


@dataclass(frozen=True)
class Place:
    """Where this process stands among the others."""

    rank: int
    ranks: int
    device: torch.device

    def mean(self, value: Tensor) -> float:
        """The mean of a scalar over the ranks."""
        total = value.detach().double()
        if self.ranks > 1:
            dist.all_reduce(total)
        return total.item() / self.ranks

    def of_first_rank(self, value: float) -> float:
        """The number that the first rank has."""
        number = torch.tensor([value], dtype=torch.float64, device=self.device)
        if self.ranks > 1:
            dist.broadcast(number, 0)
        return number.item()


@contextmanager
def joined_world(device: str | None = None) -> Iterator[Place]:
    """This process's place: in a group that exists already, in a job of torchrun, or alone.

    A group that is made here (NCCL for GPUs, Gloo otherwise) ends with the context.
    """
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    launched = dist.is_available() and (dist.is_initialized() or dist.is_torchelastic_launched())
    if kind == "cuda":
        kind = f"cuda:{dist.get_node_local_rank(fallback_rank=0) if launched else 0}"
        torch.cuda.set_device(kind)
    if not launched:
        yield Place(0, 1, torch.device(kind))
        return
    mine = not dist.is_initialized()
    if mine:
        dist.init_process_group("nccl" if kind.startswith("cuda") else "gloo")
    try:
        yield Place(dist.get_rank(), dist.get_world_size(), torch.device(kind))
    finally:
        if mine:
            dist.destroy_process_group()


class Clock:
    """Seconds spent training; evaluation and checkpoints stop it."""

    def __init__(self, device: torch.device, seconds: float = 0.0) -> None:
        self._device, self._before, self._since = device, seconds, time.perf_counter()

    def read(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return self._before + time.perf_counter() - self._since

    @contextmanager
    def stopped(self) -> Iterator[None]:
        self._before = self.read()
        yield
        self._since = time.perf_counter()
