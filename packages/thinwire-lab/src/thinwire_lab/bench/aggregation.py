"""The comparison of the GradiVeQ paper: how long an average takes in its ring, and as QSGD, at the same ratio.

QSGD that decodes, adds and encodes at every hop of the ring is the paper's baseline; sharded, each number is encoded
twice in all. All ways take turns in one run. This module is also the program of every host.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from rich.table import Table

from thinwire.worlds.distributed import Distributed
from thinwire_lab.bench.collectives import NUMEL, WARMUP, Averaged, Plain, settled, structured_gradients
from thinwire_lab.bench.collectives import largest as largest_of
from thinwire_lab.bench.launching import launched, report, work
from thinwire_lab.bench.results import Target, columns, show_size
from thinwire_lab.recipes.place import Place

GRADIVEQ = "pca(ratio=8, warmup=1, sample=2, reuse=1000, slice=64)"  # compresses from the fourth step on
QSGD = "qsgd(bits=4)"
RING, HOPS, SHARDED, SUMMED = "GradiVeQ, ring", "QSGD, every hop", "QSGD, sharded", "GradiVeQ, all-reduce"
WAYS: dict[str, tuple[str, str]] = {
    RING: (GRADIVEQ, "ring"),
    SUMMED: (GRADIVEQ, "summed"),
    HOPS: (QSGD, "ring"),
    SHARDED: (QSGD, "sharded"),
}
LINKS = ("100mbit", "1gbit")


@dataclass(frozen=True)
class AggregationRow:
    """One way on one kind of link; `plain_seconds` is the time of dividing and all_reduce in fp32."""

    kind: ClassVar[str] = "aggregation"

    way: str
    codec: str
    reduction: str
    link: str
    ranks: int
    numel: int
    seconds: float
    plain_seconds: float
    bytes_sent: int
    speedup: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "speedup", self.plain_seconds / self.seconds)

    @property
    def title(self) -> str:
        return f"{self.way}, {self.link}"

    def judged(self) -> list[tuple[str, float | None, Target | None]]:
        return []  # a comparison between the rows, without targets


def bench_aggregation(
    link: str, hosts: int = 4, turns: int = 7, numel: int = NUMEL, tell: Callable[[str], None] | None = None
) -> list[AggregationRow]:
    """Measure all ways in a lab of `hosts` hosts behind links of this rate ('none': loopback)."""
    found = launched("thinwire_lab.bench.aggregation", {"turns": turns, "numel": numel}, hosts, link, tell)
    return [AggregationRow(link=link, **row) for row in found]


def measure(job: dict[str, Any], place: Place) -> list[dict[str, Any]]:
    """On every rank: the slowest rank's time of each turn, and of these the median."""
    world, given = Distributed(), structured_gradients(job["numel"], place.rank)
    weights, plain = torch.ones_like(given[0]), Plain(given[0], place.ranks)
    averaged = {
        way: Averaged(codec, given, weights, world, None if reduction == "summed" else reduction)
        for way, (codec, reduction) in WAYS.items()
    }
    for way, candidate in averaged.items():
        report(place, f"{way}: warm-up")
        for _ in range(WARMUP):
            candidate()
    plain()
    for turn in range(job["turns"]):
        report(place, f"turn {turn + 1} of {job['turns']}")
        plain()
        for candidate in averaged.values():
            candidate()
    plain_seconds = settled(plain.seconds, job["turns"])
    return [
        {
            "way": way,
            "codec": WAYS[way][0],
            "reduction": WAYS[way][1],
            "ranks": place.ranks,
            "numel": given[0].numel(),
            "seconds": settled(candidate.seconds, job["turns"]),
            "plain_seconds": plain_seconds,
            "bytes_sent": round(largest_of([candidate.sent])[0]),
        }
        for way, candidate in averaged.items()
    ]


def aggregation_table(rows: Sequence[AggregationRow]) -> Table:
    """Rows of one link, for the terminal."""
    first = rows[0]
    title = (
        f"aggregating {show_size(4 * first.numel)} of fp32 among {first.ranks} ranks, link {first.link}; dividing and "
        f"all_reduce in place: {first.plain_seconds * 1e3:.1f} ms"
    )
    names = ("way", "codec", "ms", "times as fast as fp32", "bytes sent")
    table = columns(Table(title=title, title_justify="left"), names, left=2)
    for row in rows:
        table.add_row(row.way, row.codec, f"{row.seconds * 1e3:.1f}", f"{row.speedup:.2f}", f"{row.bytes_sent:,}")
    return table


if __name__ == "__main__":
    work(sys.argv[1:], measure)
