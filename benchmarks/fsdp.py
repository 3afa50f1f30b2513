"""Steps of FSDP2 over thin links between hosts: thinwire's codecs beside FSDP's own collectives.

python -m benchmarks.fsdp [hsdp] [--link 200mbit] [--turns 2] [--codecs none,qsgd,powersgd]
python -m benchmarks.fsdp shards [--link none]

hsdp     2 hosts of 2 ranks. The ranks of a host share the parameters; the hosts are the replicas.
shards   2 hosts of 2 ranks, and all four share the parameters: what is reduced and gathered crosses the links.

Hosts are network namespaces of the lab, so that it needs the right to make them; links inside a host have no limit.
`--link none` runs four ranks on loopback. All contenders are there at the same time and take turns of a few steps. A
step lasts until the slowest rank has ended it. Bytes are those that a host's interface sent, from the kernel; reducing
is the time that FSDP waits for the collective that thinwire replaces. What a handle tells is the bytes of its rank.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

import thinwire
from thinwire_lab.bench.collectives import largest
from thinwire_lab.bench.ddp_worker import fresh_model, made_up_batches
from thinwire_lab.bench.launching import common_moment, work
from thinwire_lab.lab import Lab
from thinwire_lab.lab import launch as launch_job
from thinwire_lab.recipes.place import Place
from thinwire_lab.recipes.recipe import loss_of

NATIVE = "FSDP's own"
CODECS = {"hsdp": "none,qsgd,powersgd", "shards": "none,bf16,qsgd"}
WARMUP, STEPS = {"hsdp": 3, "shards": 1}, 3  # factors and bases begin later than messages
JOB: dict[str, Any] = {"model": "gpt", "batch": 1, "context": 64, "model_options": {}}


class Timed:
    """A collective of FSDP, and the seconds that it took."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call, self.seconds = call, 0.0

    def __call__(self, *given: Any, **options: Any) -> Any:
        began = time.perf_counter()
        result = self.call(*given, **options)
        self.seconds += time.perf_counter() - began
        return result


class Runner:
    """One contender's copy of the model, and what its steps took."""

    def __init__(self, text: str, mesh: DeviceMesh) -> None:
        self.text = text
        model: Any = fresh_model(JOB)
        self.model, self.parameters = model, sum(p.numel() for p in model.parameters())
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        self.handle = None if text == NATIVE else thinwire.attach(self.model, text)
        self.timed = time_native(self.model, mesh) if text == NATIVE else []
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.seconds: list[float] = []
        self.reducing: list[float] = []
        self.link: list[float] = []
        self.told: int | None = None

    def train(self, batch: tuple[Tensor, Tensor]) -> float:
        """One step from when all ranks begin; its seconds on this rank."""
        for each in self.timed:
            each.seconds = 0.0
        began = common_moment()
        loss_of(self.model, *batch).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - began

    def turn(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        before = link_bytes()
        for step in range(STEPS):
            self.seconds.append(self.train(batches[step % len(batches)]))
            metrics = None if self.handle is None else self.handle.metrics()
            self.told = None if metrics is None else metrics.bytes_sent
            own = sum(each.seconds for each in self.timed)
            self.reducing.append(own if metrics is None else metrics.exposed_seconds)
        dist.barrier()
        self.link.append((link_bytes() - before) / STEPS)

    def figures(self) -> dict[str, Any]:
        return {
            "contender": self.text,
            "seconds": statistics.median(largest(self.seconds)),
            "reducing": statistics.median(largest(self.reducing)),
            "told": self.told,
            "link": statistics.median(largest(self.link)),
        }


def time_native(model: Any, mesh: DeviceMesh) -> list[Timed]:
    """Time the reduce-scatter of FSDP. Its all-reduce is not timed: it is what the steps of `hsdp` differ by."""
    if mesh.ndim > 1:
        return []
    found = []
    for module in model.modules():
        if hasattr(module, "set_custom_reduce_scatter"):
            comm = module._get_fsdp_state()._fsdp_param_groups[0]._reduce_scatter_comm
            found.append(Timed(comm.__call__))
            found[-1].allocate = comm.allocate  # type: ignore[attr-defined]
            module.set_custom_reduce_scatter(found[-1])
    return found


def link_bytes() -> int:
    """Bytes that this host's interfaces have sent to other hosts."""
    total = 0
    for line in Path("/proc/net/dev").read_text(encoding="utf-8").splitlines()[2:]:
        name, _, figures = line.partition(":")
        if name.strip() != "lo":
            total += int(figures.split()[8])
    return total


def measure(job: dict[str, Any], place: Place) -> dict[str, Any]:
    names = {"hsdp": ("replicate", "shard"), "shards": ("shard",)}[job["kind"]]
    mesh = init_device_mesh("cpu", (2, 2) if len(names) == 2 else (4,), mesh_dim_names=names)
    batches = made_up_batches(JOB, place.rank)
    runners = [Runner(text, mesh) for text in [NATIVE, *job["codecs"]]]
    for runner in runners:
        for step in range(WARMUP[job["kind"]]):
            runner.train(batches[step])
    for _ in range(job["turns"]):
        for runner in runners:
            runner.turn(batches)
    rows = [runner.figures() for runner in runners]
    for runner in runners:
        if runner.handle is not None:
            runner.handle.close()
    return {"parameters": runners[0].parameters, "rows": rows}


def launch(kind: str, link: str, codecs: list[str], turns: int) -> dict[str, Any]:
    """Run this module on two hosts of two ranks, or on four ranks of one."""
    job = json.dumps({"kind": kind, "codecs": codecs, "turns": turns})
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "value.json"
        hosts, procs = (1, 4) if link == "none" else (2, 2)
        with Lab(hosts, link) as lab:
            code = launch_job(lab, ["-m", "benchmarks.fsdp", "work", str(output), job], procs)
        if code:
            raise SystemExit(f"the workers ended with code {code}")
        found: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
        return found


def show(kind: str, link: str, found: dict[str, Any]) -> None:
    own = found["rows"][0]
    title = f"{kind}, GPT of {found['parameters']:,} parameters, 4 ranks, link {link}: median step of the slowest rank"
    table = Table(title=title, title_justify="left")
    for name in ("contender", "step ms", "/ FSDP's own", "reducing ms", "MB told by a rank", "MB of a host's link"):
        table.add_column(name, justify="left" if name == "contender" else "right")
    for row in found["rows"]:
        reducing = f"{row['reducing'] * 1e3:.0f}" if row["reducing"] else ""
        told = f"{row['told'] / 1e6:.1f}" if row["told"] is not None else ""
        ratio, sent = row["seconds"] / own["seconds"], f"{row['link'] / 1e6:.1f}"
        table.add_row(row["contender"], f"{row['seconds'] * 1e3:.0f}", f"{ratio:.2f}", reducing, told, sent)
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", nargs="?", choices=("hsdp", "shards"), default="hsdp")
    parser.add_argument("--link", default="200mbit")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--codecs")
    given = parser.parse_args()
    codecs = (given.codecs or CODECS[given.kind]).split(",")
    show(given.kind, given.link, launch(given.kind, given.link, codecs, given.turns))


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(sys.argv[2:], measure)
    else:
        main()
