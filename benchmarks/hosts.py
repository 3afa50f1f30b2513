"""What `attach(local_size=)` saves: bytes on the links of hosts with several ranks, and the time of a step.

    python benchmarks/hosts.py                      # 2 hosts with 2 ranks each, links of 200 Mbit/s
    python benchmarks/hosts.py --link 1gbit --model gpt

All ways take turns of a few steps in one run. Bytes are those that the kernel counted on the interface of a host, with
headers; ratios are to plain DistributedDataParallel of the same run. This file is also the program of every rank.
"""

import argparse
import copy
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire_lab.bench.collectives import largest
from thinwire_lab.bench.ddp import WORKLOADS
from thinwire_lab.bench.ddp_worker import fresh_model, made_up_batches, slowest
from thinwire_lab.bench.launching import common_moment, work
from thinwire_lab.lab import Lab
from thinwire_lab.lab import launch as launch_job
from thinwire_lab.recipes.place import Place
from thinwire_lab.recipes.recipe import loss_of

CODECS = ("none", "qsgd", "powersgd(rank=2)")
WARMUP = 5  # PowerSGD begins later than DDP settles


class Way:
    """One codec, between all ranks (`local_size` 1) or between hosts; plain DDP without a codec."""

    def __init__(self, codec: str | None, local_size: int, model: nn.Module) -> None:
        self.codec, self.local_size = codec, local_size
        self.parallel = DistributedDataParallel(copy.deepcopy(model))
        self.handle = codec and thinwire.attach(self.parallel, codec, local_size=local_size)
        self.optimizer = torch.optim.SGD(self.parallel.parameters(), lr=1e-3)
        self.seconds: list[float] = []
        self.link_bytes = 0

    def step(self, x: torch.Tensor, y: torch.Tensor) -> float:
        began = common_moment()
        loss_of(self.parallel, x, y).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - began

    def turn(self, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        before = link_bytes()
        self.seconds += [self.step(x, y) for x, y in batches]
        self.link_bytes += link_bytes() - before


def link_bytes() -> int:
    """Bytes that this host has sent on all interfaces but its loopback."""
    lines = Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines()[2:]
    counts = {name.strip(): int(rest.split()[8]) for name, _, rest in (line.partition(":") for line in lines)}
    return sum(count for name, count in counts.items() if name != "lo")


def measure(job: dict[str, Any], place: Place) -> dict[str, Any]:
    model, batches = fresh_model(job), made_up_batches(job, place.rank)
    ways = [Way(None, 1, model)]
    ways += [Way(codec, size, model) for codec in CODECS for size in (1, job["procs"])]
    for way in ways:
        for at in range(WARMUP):
            way.step(*batches[at % len(batches)])
    for _ in range(job["turns"]):
        for way in ways:
            way.turn(batches)
    rows = []
    for way in ways:
        steps = len(way.seconds)
        (sent,) = largest([float(way.link_bytes)])
        rows.append({"codec": way.codec, "local_size": way.local_size, "seconds": slowest(way.seconds)})
        rows[-1] |= {"link_bytes": round(sent / steps)}
        if way.handle:
            way.handle.close()
    return {"parameters": sum(p.numel() for p in model.parameters()), "rows": rows}


def table(found: dict[str, Any], procs: int) -> str:
    """The rows as Markdown."""
    plain = found["rows"][0]
    lines = [
        "| codec | summed inside hosts | MB on a host's link for each step | / plain DDP | step, ms | / plain DDP |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for row in found["rows"]:
        name = "plain DDP" if row["codec"] is None else f"`{row['codec']}`"
        shared = "" if row["codec"] is None else "yes" if row["local_size"] == procs else "no"
        lines.append(
            f"| {name} | {shared} | {row['link_bytes'] / 1e6:.2f} | {row['link_bytes'] / plain['link_bytes']:.2f}"
            f" | {row['seconds'] * 1e3:.0f} | {row['seconds'] / plain['seconds']:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--procs", type=int, default=2, help="ranks on each host")
    parser.add_argument("--link", default="200mbit")
    parser.add_argument("--model", default="vgg", choices=sorted(WORKLOADS))
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    workload = WORKLOADS[options.model]
    job = {"model": workload.model, "model_options": dict(workload.options), "batch": workload.batch}
    job |= {"context": workload.context, "procs": options.procs, "turns": options.turns}
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "value.json"
        with Lab(options.hosts, options.link) as lab:
            said: list[str] = []
            code = launch_job(
                lab, [__file__, "--worker", str(output), json.dumps(job)], options.procs, echo=said.append
            )
        if code:
            sys.exit("\n".join(said[-20:]))
        found = json.loads(output.read_text(encoding="utf-8"))
    print(
        f"{options.model}, {found['parameters']:,} parameters, {options.hosts} hosts with {options.procs} ranks each,"
    )
    print(f"on links of {options.link}\n\n{table(found, options.procs)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2:], measure)
    else:
        main()
