"""Many cases in one set of four processes, as in tests.ddp.cases, and what they train."""

import importlib
import traceback
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

import thinwire
from tests.distributed.processes import run_ranks

RANKS = 4
KINDS = ("replicas", "shards", "saving", "errors", "auto")
Case = Callable[[int, Path], None]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    """Run this function `(rank, folder)` on every rank; it asserts."""
    CASES[function.__name__] = function
    return function


def load_cases() -> dict[str, Case]:
    for kind in KINDS:
        importlib.import_module(f"tests.fsdp.cases_{kind}")
    return CASES


def run_all(rank: int, ranks: int, folder: str, only: str | None = None) -> dict[str, str]:
    """What went wrong in each case; nothing if it is well."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    found = {}
    for name, function in load_cases().items():
        if only is None or name in only.split(","):
            place = Path(folder) / name
            place.mkdir(parents=True, exist_ok=True)
            try:
                function(rank, place)
                found[name] = ""
            except BaseException:
                found[name] = traceback.format_exc()
            dist.barrier()
    return found


@cache
def outcomes(folder: str, only: str | None = None) -> list[dict[str, str]]:
    return run_ranks(RANKS, run_all, folder, only, seconds=300)


# What the cases train.


class Net(nn.Module):
    """Two matrices of which every shard is worth compressing. Neither two nor four shards have equal rows, and one of
    four has none of the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 131)
        self.middle = nn.Sequential(nn.Linear(131, 67), nn.ReLU())
        self.last = nn.Linear(67, 9)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.middle(torch.relu(self.first(x))))
        return logits


def net(dtype: torch.dtype = torch.float32) -> Net:
    torch.manual_seed(7)
    return Net().to(dtype)


@cache
def mesh(replicas: int) -> DeviceMesh:
    """Two dimensions, or one if there is one replica."""
    if replicas == 1:
        return init_device_mesh("cpu", (RANKS,), mesh_dim_names=("shard",))
    return init_device_mesh("cpu", (replicas, RANKS // replicas), mesh_dim_names=("replicate", "shard"))


def sharded(module: Net, replicas: int, whole: bool = True, **options: Any) -> Any:
    """Three parameter groups: two of nested modules, and the rest."""
    for part in (module.first, module.middle) if whole else ():
        fully_shard(part, mesh=mesh(replicas), **options)
    fully_shard(module, mesh=mesh(replicas), **options)
    return module


def loss_of(model: Any, rank: int, step: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x, y = torch.randn(8, 32, generator=generator).to(dtype), torch.randint(9, (8,), generator=generator)
    return nn.functional.cross_entropy(model(x).float(), y)


def train(model: Any, rank: int, steps: range, optimizer: torch.optim.Optimizer | None = None) -> torch.optim.Optimizer:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        optimizer.step()
    return optimizer


def gradients(model: Any) -> dict[str, Tensor]:
    """Whole gradients, gathered from the shards of this replica."""
    found: list[tuple[str, Any]] = [(name, p.grad) for name, p in model.named_parameters()]
    return {name: gradient.full_tensor() for name, gradient in found if gradient is not None}


def weights(model: Any) -> Tensor:
    found: list[Any] = list(model.parameters())
    return torch.cat([p.full_tensor().detach().reshape(-1) for p in found])


def assert_same_everywhere(mine: Tensor) -> None:
    everyone: list[Any] = [None] * RANKS
    dist.all_gather_object(everyone, mine)
    assert all(torch.equal(each, everyone[0]) for each in everyone)
    assert torch.isfinite(mine).all()


def summed(mine: Tensor | None, shape: tuple[int, ...] = ()) -> Tensor:
    """The sum over all ranks."""
    total = torch.zeros(shape, dtype=torch.float64) if mine is None else mine.double().clone()
    dist.all_reduce(total)
    return total


def last_of(handle: thinwire.Handle) -> thinwire.StepMetrics:
    metrics = handle.metrics()
    assert metrics is not None
    return metrics
