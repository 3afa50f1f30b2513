"""Averaging 25 MiB over thin links: every codec against the backend's own fp32 all-reduce, in the same run.

The baseline is what plain DDP does for an average: divide by the number of ranks, and all_reduce in place. This module
is also the program of every host.
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from rich.table import Table
from torch import Tensor

from thinwire import Codec, Slot, StepInfo
from thinwire.core.average import average
from thinwire.worlds.distributed import Distributed
from thinwire_lab.bench.launching import common_moment, launched, report, work
from thinwire_lab.bench.results import Target, at_least, beside_target, columns, show_size
from thinwire_lab.lab.rates import parse_rate
from thinwire_lab.recipes.place import Place

NUMEL = 25 * 2**18  # 25 MiB of fp32
ROW = 640  # numbers in a row of the gradient
GRADIVEQ = "gradiveq(ratio=8, warmup=1, sample=2, reuse=1000, slice=64)"  # compresses from the fourth step on
FFTSGD = "fftsgd(theta=0.85, mantissa=7, transform=always)"
IWP = "iwp(density=1/64, mask_nodes=1)"
WARMUP = 5
SPAN = 60.0  # seconds that turns may take on quick links, where there are more of them than were asked for
MOST = 4  # times as many
CODECS = (
    "none",
    "fp16",
    "qsgd(bits=4)",
    "nuqsgd(bits=4, norm=max)",
    "integers(bits=8)",
    GRADIVEQ,
    FFTSGD,
    IWP,
    "sign",
)
LINKS = ("1gbit", "200mbit", "100mbit", "none")
SPEED_UPS: dict[str, dict[str, float]] = {
    "1gbit": {"qsgd(bits=4)": 6.0, "nuqsgd(bits=4, norm=max)": 5.5, "integers(bits=8)": 3.2, GRADIVEQ: 4.0},
    "200mbit": {"qsgd(bits=4)": 7.2, GRADIVEQ: 6.5, FFTSGD: 5.0, IWP: 25.0},
    "none": {"qsgd(bits=4)": 1.0, "none": 0.97},
}
WIRE_SHARES = {"100mbit": 0.9}  # of its limit, that every codec reaches
JUDGED_RANKS = 4


@dataclass(frozen=True)
class CollectiveRow:
    """One codec on one kind of link: seconds, the speed-up over fp32, and how near it came to the wire's limit."""

    kind: ClassVar[str] = "collective"

    codec: str
    link: str
    ranks: int
    numel: int
    seconds: float
    plain_seconds: float
    bytes_sent: int
    limit_seconds: float | None  # bytes / rate
    speedup: float = field(init=False)
    wire_share: float | None = field(init=False)
    speedup_target: Target | None = field(init=False)
    wire_target: Target | None = field(init=False)

    def __post_init__(self) -> None:
        judged = (self.numel, self.ranks) == (NUMEL, JUDGED_RANKS)
        speed, wire = SPEED_UPS.get(self.link, {}).get(self.codec), WIRE_SHARES.get(self.link)
        put = object.__setattr__
        put(self, "speedup", self.plain_seconds / self.seconds)
        put(self, "wire_share", None if self.limit_seconds is None else self.limit_seconds / self.seconds)
        put(self, "speedup_target", at_least(speed) if judged and speed is not None else None)
        put(self, "wire_target", at_least(wire) if judged and wire is not None else None)

    @property
    def title(self) -> str:
        return f"{self.codec}, {self.link}"

    def judged(self) -> list[tuple[str, float | None, Target | None]]:
        return [
            ("speed-up", self.speedup, self.speedup_target),
            ("share of the wire", self.wire_share, self.wire_target),
        ]


def bench_collectives(
    link: str,
    hosts: int = 4,
    codecs: Sequence[str] = CODECS,
    turns: int = 7,
    warmup: int = WARMUP,
    numel: int = NUMEL,
    tell: Callable[[str], None] | None = None,
) -> list[CollectiveRow]:
    """Measure in a lab of `hosts` hosts behind links of this rate ('none': loopback)."""
    for text in codecs:
        Codec.parse(text)  # a wrong one is refused before anything runs
    job = {"codecs": list(codecs), "turns": turns, "warmup": warmup, "numel": numel}
    rate = parse_rate(link)
    found = launched("thinwire_lab.bench.collectives", job, hosts, link, tell)
    return [
        CollectiveRow(link=link, limit_seconds=8 * row["bytes_sent"] / rate if rate else None, **row) for row in found
    ]


def structured_gradients(numel: int, rank: int, count: int = 3) -> list[Tensor]:
    """Those of some steps: rows near a space of 32 dimensions that all ranks share, as those of layers are, and noise.

    They differ from step to step: a basis cannot be learnt from samples that do not vary.
    """
    rows, width = max(1, numel // ROW), min(ROW, numel)
    shared = torch.randn(32, width, generator=torch.Generator().manual_seed(1))
    own = torch.Generator().manual_seed(100 + rank)
    return [
        torch.randn(rows, 32, generator=own) @ shared / 6 + 0.1 * torch.randn(rows, width, generator=own)
        for _ in range(count)
    ]


class Averaged:
    """One codec with a memory of its own, averaging the gradients in turn."""

    def __init__(
        self, text: str, given: Sequence[Tensor], weights: Tensor, world: Distributed, reduction: str | None = None
    ) -> None:
        self.codec, self.given, self.weights, self.world = Codec.parse(text), given, weights, world
        self.reduction = reduction
        self.slot, self.step, self.sent = Slot(), 0, 0
        self.buffer = torch.empty_like(given[0])
        self.seconds: list[float] = []

    def __call__(self) -> None:
        before = self.world.sent
        who = self.world.rank, self.world.ranks, 0, self.step
        turn = StepInfo(*who, self.reduction, buffers=self.world.buffers)
        given = self.buffer.copy_(self.given[self.step % len(self.given)])
        began = common_moment()
        self.world.drive(average(self.codec, given, self.slot, turn, self.weights, out=given))
        self.seconds.append(time.perf_counter() - began)
        self.step, self.sent = self.step + 1, self.world.sent - before


class Plain:
    """The baseline."""

    def __init__(self, given: Tensor, ranks: int) -> None:
        self.given, self.buffer, self.ranks = given, torch.empty_like(given), ranks
        self.seconds: list[float] = []

    def __call__(self) -> None:
        self.buffer.copy_(self.given)
        began = common_moment()
        self.buffer.div_(self.ranks)
        dist.all_reduce(self.buffer)
        self.seconds.append(time.perf_counter() - began)


def measure(job: dict[str, Any], place: Place) -> list[dict[str, Any]]:
    """On every rank: all codecs and the baseline take turns; the slowest rank's time of each turn, and of these the
    median."""
    world, given = Distributed(), structured_gradients(job["numel"], place.rank)
    weights = torch.randn(given[0].shape, generator=torch.Generator().manual_seed(2))
    plain = Plain(given[0], place.ranks)
    averaged = {text: Averaged(text, given, weights, world) for text in job["codecs"]}
    for text, candidate in averaged.items():
        report(place, f"{text}: warm-up")
        for _ in range(job["warmup"]):
            candidate()
    plain()
    turns, turn = job["turns"], 0
    while turn < turns:
        report(place, f"turn {turn + 1} of {turns}")
        began = common_moment()
        plain()
        for candidate in averaged.values():
            candidate()
        if turn == 0:
            (took,) = largest([time.perf_counter() - began])
            turns = turns_in_span(turns, took)
        turn += 1
    plain_seconds = settled(plain.seconds, turns)
    return [
        {
            "codec": text,
            "ranks": place.ranks,
            "numel": given[0].numel(),
            "seconds": settled(candidate.seconds, turns),
            "plain_seconds": plain_seconds,
            "bytes_sent": round(largest([candidate.sent])[0]),  # of the rank that sends most, which the others wait for
        }
        for text, candidate in averaged.items()
    ]


def turns_in_span(turns: int, seconds: float, span: float = SPAN) -> int:
    """How many turns of so many seconds each there are, where so many are asked for: quick ones vary most."""
    return max(turns, min(MOST * turns, int(span / max(seconds, 1e-9))))


def settled(seconds: Sequence[float], turns: int) -> float:
    """The median of the last turns, each as long as its slowest rank took."""
    return float(statistics.median(largest(seconds[-turns:])))


def largest(figures: Sequence[float]) -> list[float]:
    """The largest of all ranks' figures for the same things, mostly seconds."""
    most = torch.tensor(figures, dtype=torch.float64)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    found: list[float] = most.tolist()
    return found


def collective_table(rows: Sequence[CollectiveRow]) -> Table:
    """Rows of one link, for the terminal; a target that is missed is red."""
    first = rows[0]
    title = (
        f"averaging {show_size(4 * first.numel)} of fp32 among {first.ranks} ranks, link {first.link}; dividing and "
        f"all_reduce in place: {first.plain_seconds * 1e3:.1f} ms"
    )
    names = ("codec", "ms", "speed-up", "bytes sent", "wire's limit ms", "share of it")
    table = columns(Table(title=title, title_justify="left"), names)
    for row in rows:
        limit = "" if row.limit_seconds is None else f"{row.limit_seconds * 1e3:.1f}"
        share = "" if row.wire_share is None else beside_target(row.wire_share, row.wire_target)
        speed = beside_target(row.speedup, row.speedup_target)
        table.add_row(row.codec, f"{row.seconds * 1e3:.1f}", speed, f"{row.bytes_sent:,}", limit, share)
    return table


if __name__ == "__main__":
    work(sys.argv[1:], measure)
