"""Averaging 25 MiB over thin links: every codec against the backend's own fp32 all-reduce, in the same run.

`bench_collectives` starts this module as the program of every host.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.table import Table

from thinwire import Codec, Slot, Turn
from thinwire.core.average import average
from thinwire.errors import ThinwireError
from thinwire.worlds.distributed import Distributed

NUMEL = 25 * 2**18  # 25 MiB of fp32
SHAPE = (NUMEL // 640, 640)
CODECS = ("none", "qsgd(bits=4)", "nuqsgd(bits=4, norm=max)", "integers(bits=8)", "sign", "fp16")


@dataclass(frozen=True)
class CollectiveRow:
    """One codec on one kind of link: seconds, and the speed-up over the backend's fp32 all-reduce."""

    codec: str
    link: str
    ranks: int
    seconds: float
    plain_seconds: float
    bytes_sent: int
    limit_seconds: float | None

    @property
    def speedup(self) -> float:
        return self.plain_seconds / self.seconds


def bench_collectives(
    link: str, hosts: int = 4, codecs: Sequence[str] = CODECS, turns: int = 7, warmup: int = 3
) -> list[CollectiveRow]:
    """Measure in a lab of `hosts` hosts behind links of this rate ('none': loopback)."""
    from thinwire.lab import Lab, parse_rate

    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "rows.json"
        argv = ["-m", "thinwire.bench.collectives", "--output", str(output), "--turns", str(turns)]
        argv += ["--warmup", str(warmup), *codecs]
        with Lab(hosts, link) as lab:
            code = lab.launch(argv)
        if code or not output.exists():
            raise ThinwireError(f"the benchmark's workers ended with code {code}.")
        rate = None if link == "none" else parse_rate(link)
        return [
            CollectiveRow(link=link, limit_seconds=8 * row["bytes_sent"] / rate if rate else None, **row)
            for row in json.loads(output.read_text())
        ]


def measure(codecs: Sequence[str], turns: int, warmup: int) -> list[dict[str, Any]]:
    """On every rank: the median time of each codec, taken in turns with the plain all-reduce."""
    world = Distributed()
    given = torch.randn(SHAPE, generator=torch.Generator().manual_seed(world.rank))
    return [_measured(Codec.parse(text), given, world, turns, warmup) for text in codecs]


def _measured(codec: Codec, given: torch.Tensor, world: Distributed, turns: int, warmup: int) -> dict[str, Any]:
    slot, seconds, plain, sent = Slot(), [], [], 0
    for step in range(warmup + turns):
        before, sent_before = _together(), world.sent
        world.drive(average(codec, given, slot, Turn(world.rank, world.ranks, 0, step), given))
        seconds.append(time.perf_counter() - before)
        sent = world.sent - sent_before
        buffer = given / world.ranks
        before = _together()
        dist.all_reduce(buffer)
        plain.append(time.perf_counter() - before)
    return {
        "codec": str(codec),
        "ranks": world.ranks,
        "seconds": sorted(seconds[warmup:])[turns // 2],
        "plain_seconds": sorted(plain[warmup:])[turns // 2],
        "bytes_sent": sent,
    }


def _together() -> float:
    dist.barrier()
    return time.perf_counter()


def collective_table(rows: Sequence[CollectiveRow]) -> Table:
    """For the terminal."""
    table = Table(title=f"averaging {NUMEL * 4 / 2**20:.0f} MiB of fp32")
    for column in ("codec", "link", "ranks", "ms", "fp32 all-reduce ms", "speed-up", "bytes sent", "wire's limit ms"):
        table.add_column(column, justify="left" if column in ("codec", "link") else "right")
    for row in rows:
        limit = "" if row.limit_seconds is None else f"{row.limit_seconds * 1e3:.1f}"
        figures = (f"{row.seconds * 1e3:.1f}", f"{row.plain_seconds * 1e3:.1f}", f"{row.speedup:.2f}x")
        table.add_row(row.codec, row.link, str(row.ranks), *figures, f"{row.bytes_sent:,}", limit)
    return table


def collective_records(rows: Sequence[CollectiveRow]) -> list[dict[str, Any]]:
    return [{"kind": "collective", "speedup": row.speedup, **asdict(row)} for row in rows]


def main() -> None:
    """The worker: measures, and rank 0 writes what it found."""
    options = argparse.ArgumentParser()
    options.add_argument("--output", type=Path, required=True)
    options.add_argument("--turns", type=int, default=7)
    options.add_argument("--warmup", type=int, default=3)
    options.add_argument("codecs", nargs="+")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rows = measure(chosen.codecs, chosen.turns, chosen.warmup)
    if dist.get_rank() == 0:
        chosen.output.write_text(json.dumps(rows))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
