"""What a user waits for before the first step: the import, and `attach`. This module is also the ranks' program."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from rich.table import Table
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from thinwire import attach
from thinwire_lab.bench.launching import launched, work
from thinwire_lab.bench.results import BenchError, Target, at_most, beside_target, columns
from thinwire_lab.recipes.place import Place

LAYERS = 100
IMPORTS = {"import thinwire": 0.3, "from thinwire import attach": 0.3}  # seconds beyond torch
ATTACH = 0.5


@dataclass(frozen=True)
class StartRow:
    """Seconds, and those of what one has to wait for anyway."""

    kind: ClassVar[str] = "start"

    what: str
    seconds: float
    baseline: str
    baseline_seconds: float
    target: Target | None

    @property
    def title(self) -> str:
        return self.what

    def judged(self) -> list[tuple[str, float | None, Target | None]]:
        return [("seconds", self.seconds, self.target)]


def bench_start(turns: int = 3, layers: int = LAYERS, tell: Callable[[str], None] | None = None) -> list[StartRow]:
    """Imports in fresh interpreters, the best of some turns; and the first `attach` of each of two ranks."""
    rows = []
    for statement, most in IMPORTS.items():
        if tell is not None:
            tell(statement)
        torch_seconds, own = map(min, zip(*(import_seconds(statement) for _ in range(turns)), strict=True))
        rows.append(StartRow(f"{statement}, beyond torch", own, "import torch", torch_seconds, at_most(most)))
    if tell is not None:
        tell("attach")
    found = launched("thinwire_lab.bench.start", {"layers": layers}, 2, "none")
    aim = at_most(ATTACH) if layers == LAYERS else None
    return [*rows, StartRow(f"attach, {layers} layers", found["attach"], "making the DDP model", found["ddp"], aim)]


def import_seconds(statement: str) -> tuple[float, float]:
    """Seconds of importing torch, and then of this statement, in an interpreter of their own."""
    clock = "from time import perf_counter as now; a = now()"
    code = f"{clock}; import torch; b = now(); {statement}; print(b - a, now() - b)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise BenchError(f"`{statement}` failed in a fresh interpreter: {done.stderr.strip().splitlines()[-1]}")
    first, second = done.stdout.split()
    return float(first), float(second)


def measure(job: dict[str, Any], _: Place) -> dict[str, float]:
    """On every rank: wrap a model of many layers, and attach to it; the slower rank's times."""
    layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(job["layers"])))
    dist.barrier()
    began = time.perf_counter()
    model = DistributedDataParallel(layers)
    made = time.perf_counter()
    handle = attach(model, "qsgd(bits=4)")
    times = torch.tensor([time.perf_counter() - made, made - began], dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    handle.close()
    return {"attach": float(times[0]), "ddp": float(times[1])}


def start_table(rows: Sequence[StartRow]) -> Table:
    """For the terminal."""
    table = columns(
        Table(title="before the first step", title_justify="left"), ("what", "seconds", "baseline", "seconds")
    )
    for row in rows:
        shown = beside_target(row.seconds, row.target)
        table.add_row(row.what, shown, row.baseline, f"{row.baseline_seconds:.2f}")
    return table


if __name__ == "__main__":
    work(sys.argv[1:], measure)
