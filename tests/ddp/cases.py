"""Many cases in one set of processes: starting processes takes seconds, a case takes a fraction of one."""

import importlib
import time
import traceback
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from tests.distributed.processes import run_ranks
from thinwire.ddp import bucket_hook

KINDS = (
    *("training", "models", "amp", "errors", "input", "saving", "loading", "metrics", "watching", "callbacks"),
    *("profiling", "versions", "reduction", "hosts", "auto"),
)
Case = Callable[[int, int, Path], None]
CASES: dict[int, dict[str, Case]] = {2: {}, 3: {}, 4: {}}


def case(*worlds: int) -> Callable[[Case], Case]:
    """Run this function `(rank, ranks, folder)` on every rank of worlds of these sizes; it asserts."""

    def enter(function: Case) -> Case:
        for ranks in worlds:
            CASES[ranks][function.__name__] = function
        return function

    return enter


def load_cases() -> dict[int, dict[str, Case]]:
    for kind in KINDS:
        importlib.import_module(f"tests.ddp.cases_{kind}")
    return CASES


def run_all(rank: int, ranks: int, folder: str, only: str | None = None) -> dict[str, str]:
    """What went wrong in each case; nothing if it is well.

    The models are small, and their buckets would all travel together; as they do among 3 ranks. Among 2 and 4 they
    go one by one, as long ones do.
    """
    warnings.simplefilter("error")
    if ranks != 3:
        bucket_hook.WORTH_ROUNDS = 0
    outcomes = {}
    for name, function in load_cases()[ranks].items():
        if only is not None and name != only:
            continue
        torch.manual_seed(0)
        place = Path(folder) / name
        place.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        try:
            function(rank, ranks, place)
            outcomes[name] = ""
        except BaseException:
            outcomes[name] = traceback.format_exc()
        dist.barrier()
        outcomes[f"{name} seconds"] = f"{time.perf_counter() - began:.2f}"
    return outcomes


@cache
def outcomes(ranks: int, folder: str, only: str | None = None) -> list[dict[str, str]]:
    return run_ranks(ranks, run_all, folder, only, seconds=300)


def last_of(handle: thinwire.Handle | thinwire.GradientState) -> thinwire.StepMetrics:
    """The metrics of the last step, which there must be."""
    metrics = handle.metrics()
    assert metrics is not None
    return metrics


# What the cases train.


class Net(nn.Module):
    """Two matrices large enough to be compressed, one that is not, and vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 64)
        self.second = nn.Linear(64, 48)
        self.last = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(torch.relu(self.second(torch.relu(self.first(x)))))
        return logits


def net(dtype: torch.dtype = torch.float32) -> Net:
    torch.manual_seed(7)
    return Net().to(dtype)


def ddp(module: nn.Module, **options: Any) -> DistributedDataParallel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about strides of gradients, and about unused parameters that are meant
        return DistributedDataParallel(module, **options)


def batch(rank: int, step: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(8, 32, generator=generator).to(dtype), torch.randint(10, (8,), generator=generator)


def loss_of(model: nn.Module, rank: int, step: int, dtype: torch.dtype = torch.float32) -> Tensor:
    x, y = batch(rank, step, dtype)
    return nn.functional.cross_entropy(model(x).float(), y)


def train(
    model: nn.Module,
    rank: int,
    steps: range,
    optimizer: torch.optim.Optimizer | None = None,
    dtype: torch.dtype = torch.float32,
) -> torch.optim.Optimizer:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, rank, step, dtype).backward()
        optimizer.step()
    return optimizer


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def assert_same_everywhere(mine: Tensor) -> None:
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    assert all(torch.equal(t, everyone[0]) for t in everyone)
    assert torch.isfinite(mine).all()


def summed(mine: Tensor | None, shape: tuple[int, ...] = (), group: dist.ProcessGroup | None = None) -> Tensor:
    total = torch.zeros(shape, dtype=torch.float64) if mine is None else mine.double().clone()
    dist.all_reduce(total, group=group)
    return total


def raised(function: Callable[[], Any]) -> str:
    """The message of what the function raises."""
    try:
        function()
    except Exception as reason:
        return f"{type(reason).__name__}: {reason}"
    raise AssertionError("nothing was raised")
