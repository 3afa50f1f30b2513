"""How time and bytes grow with the size of a tensor and the number of ranks, as exponents; the memory of an average.

This module is also the program of every rank.
"""

import ctypes
import gc
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from rich.table import Table

from thinwire import Codec, Slot, Spec, StepInfo
from thinwire.core.average import average
from thinwire.core.reducers import choose_reduction
from thinwire.worlds.distributed import Distributed
from thinwire_lab.bench.collectives import Averaged, Plain, settled, structured_gradients
from thinwire_lab.bench.launching import launched, report, work
from thinwire_lab.bench.results import BenchError, Target, at_most, beside_target, columns, show_size
from thinwire_lab.bench.timing import best_seconds
from thinwire_lab.recipes.place import Place

COPY = "Tensor.copy_"
ENCODED = ("qsgd(bits=4)", "nuqsgd(bits=4, norm=max)", "rangefloat(bits=8)", "sign", "topk(density=0.01)")
AVERAGED = ("none", "fp16", "qsgd(bits=4)", "nuqsgd(bits=4, norm=max)", "integers(bits=8)", "sign")
WEIGHED = (*AVERAGED, "rangefloat(bits=8)", "qsgd(bits=4) | huffman", "topk(density=0.01)", "iwp(density=1/64)")
SIZES = tuple(2**power for power in range(12, 29, 2))  # 4 KiB - 256 MiB
RANKS = (2, 4, 8)
FITTED_ABOVE = 2**16  # bytes; below, calls cost more than numbers
LINEAR = 1.1  # exponent; caches make small tensors a little cheaper than large ones
FLAT = 0.05
MOST_MEMORY = 2.5  # times the input
WEIGHED_NUMEL = 2**24  # 64 MiB
RANKS_NUMEL = 2**20  # 4 MiB
RANKS_OF_WEIGHING = 4  # two would send each other whole messages, and have no shards


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of log(value) over log(size), by least squares: 1 is linear, 0 flat."""
    x, y = ([math.log(value) for value in some] for some in (sizes, values))
    centre = sum(x) / len(x)
    return sum((a - centre) * b for a, b in zip(x, y, strict=True)) / sum((a - centre) ** 2 for a in x)


@dataclass(frozen=True)
class SizeGrowth:
    """One codec over sizes: seconds of encoding and of decoding, and the bytes of its message."""

    kind: ClassVar[str] = "growth-size"

    codec: str
    sizes: Sequence[int]
    encode_seconds: Sequence[float]
    decode_seconds: Sequence[float]
    message_bytes: Sequence[int]
    encode_exponent: float = field(init=False)
    decode_exponent: float = field(init=False)
    bytes_exponent: float = field(init=False)
    target: Target | None = field(init=False)

    def __post_init__(self) -> None:
        fitted = [at for at, size in enumerate(self.sizes) if size > FITTED_ABOVE]
        for name, values in (
            ("encode_exponent", self.encode_seconds),
            ("decode_exponent", self.decode_seconds),
            ("bytes_exponent", self.message_bytes),
        ):
            slope = exponent([self.sizes[at] for at in fitted], [values[at] for at in fitted])
            object.__setattr__(self, name, slope)
        object.__setattr__(self, "target", None if self.codec == COPY else at_most(LINEAR))

    @property
    def title(self) -> str:
        return f"{self.codec}, by size"

    def judged(self) -> list[tuple[str, float | None, Target | None]]:
        return [
            ("encode exponent", self.encode_exponent, self.target),
            ("decode exponent", self.decode_exponent, self.target),
        ]


@dataclass(frozen=True)
class RankGrowth:
    """One codec over numbers of ranks: a rank's bytes and seconds.

    Any bandwidth-optimal average sends 2 (P-1)/P of its message; what is left of the bytes beyond that must be flat.
    """

    kind: ClassVar[str] = "growth-ranks"

    codec: str
    reduction: str
    ranks: Sequence[int]
    seconds: Sequence[float]
    plain_seconds: Sequence[float]
    bytes_sent: Sequence[int]
    bytes_exponent: float = field(init=False)
    time_exponent: float = field(init=False)
    target: Target | None = field(init=False)

    def __post_init__(self) -> None:
        shares = [sent * p / (p - 1) for sent, p in zip(self.bytes_sent, self.ranks, strict=True)]
        object.__setattr__(self, "bytes_exponent", exponent(self.ranks, shares))
        relative = [own / plain for own, plain in zip(self.seconds, self.plain_seconds, strict=True)]
        object.__setattr__(self, "time_exponent", exponent(self.ranks, relative))
        object.__setattr__(self, "target", at_most(FLAT) if self.reduction == "sharded" else None)

    @property
    def title(self) -> str:
        return f"{self.codec}, by ranks"

    def judged(self) -> list[tuple[str, float | None, Target | None]]:
        return [("bytes exponent", self.bytes_exponent, self.target)]


@dataclass(frozen=True)
class MemoryRow:
    """The most memory that two averages in a row took beyond their input, as a multiple of it; results included."""

    kind: ClassVar[str] = "memory"

    codec: str
    reduction: str
    feedback: str
    numel: int
    ranks: int
    beyond: float | None  # None: the kernel does not tell
    target: Target | None = field(init=False)

    def __post_init__(self) -> None:
        aim = at_most(MOST_MEMORY) if self.reduction == "sharded" and self.numel >= WEIGHED_NUMEL else None
        object.__setattr__(self, "target", aim)

    @property
    def title(self) -> str:
        return f"{self.codec}, memory"

    def judged(self) -> list[tuple[str, float | None, Target | None]]:
        return [("beyond the input", self.beyond, self.target)]


def grow_sizes(
    codecs: Sequence[str] = ENCODED,
    sizes: Sequence[int] = SIZES,
    turns: int = 3,
    tell: Callable[[str], None] | None = None,
) -> list[SizeGrowth]:
    """Encode and decode tensors of all sizes; a copy of them grows beside them as the baseline."""
    if sum(size > FITTED_ABOVE for size in sizes) < 2:
        raise BenchError(f"an exponent needs two sizes above {show_size(FITTED_ABOVE)}; add larger ones.")
    rows: dict[str, list[tuple[float, float, int]]] = {text: [] for text in (COPY, *codecs)}
    for size in sizes:
        x = torch.randn(size // 4, generator=torch.Generator().manual_seed(0))
        out = torch.zeros_like(x)
        for text, row in rows.items():
            if tell is not None:
                tell(f"{text}, {show_size(size)}")
            row.append(_timed(text, x, out, turns))
    return [SizeGrowth(text, list(sizes), *map(list, zip(*row, strict=True))) for text, row in rows.items()]


def _timed(text: str, x: torch.Tensor, out: torch.Tensor, turns: int) -> tuple[float, float, int]:
    if text == COPY:
        seconds = best_seconds({"copy": lambda: out.copy_(x)}, turns)["copy"]
        return seconds, seconds, 4 * x.numel()
    codec = Codec.parse(text)
    message = codec.encode(x)
    found = best_seconds(
        {"encode": lambda: codec.encode(x), "decode": lambda: codec.decode(message, x.numel(), out=out, add=True)},
        turns,
    )
    return found["encode"], found["decode"], message.numel()


def grow_ranks(
    codecs: Sequence[str] = AVERAGED,
    ranks: Sequence[int] = RANKS,
    numel: int = RANKS_NUMEL,
    turns: int = 5,
    tell: Callable[[str], None] | None = None,
) -> list[RankGrowth]:
    """Averages on plain loopback among more and more ranks, which share the processors of this machine."""
    if len(set(ranks)) < 2 or min(ranks) < 2:
        raise BenchError(f"an exponent needs two different numbers of ranks from 2 on, not {list(ranks)}.")
    found = []
    for count in ranks:
        if tell is not None:
            tell(f"{count} ranks")
        job = {"what": "average", "codecs": list(codecs), "numel": numel, "turns": turns}
        found.append(launched("thinwire_lab.bench.growth", job, count, "none"))
    plain = [rows["plain"] for rows in found]
    return [
        RankGrowth(
            text,
            reduction_of(text, numel, max(ranks)),
            list(ranks),
            [rows["codecs"][text]["seconds"] for rows in found],
            plain,
            [rows["codecs"][text]["bytes_sent"] for rows in found],
        )
        for text in codecs
    ]


def weigh(
    codecs: Sequence[str] = WEIGHED, numel: int = WEIGHED_NUMEL, tell: Callable[[str], None] | None = None
) -> list[MemoryRow]:
    """Peaks of memory, each codec by itself."""
    job = {"what": "weigh", "codecs": list(codecs), "numel": numel}
    found = launched("thinwire_lab.bench.growth", job, RANKS_OF_WEIGHING, "none", tell)
    return [
        MemoryRow(
            text,
            reduction_of(text, numel, RANKS_OF_WEIGHING),
            Codec.parse(text).feedback,
            numel,
            RANKS_OF_WEIGHING,
            found[text],
        )
        for text in codecs
    ]


def reduction_of(text: str, numel: int, ranks: int) -> str:
    """How a chain is summed over the ranks."""
    codec = Codec.parse(text)
    return choose_reduction(codec.coders, codec.sum_spec(Spec(numel)), ranks, None)


def measure(job: dict[str, Any], place: Place) -> dict[str, Any]:
    return _averages(job, place) if job["what"] == "average" else _weights(job, place)


def _averages(job: dict[str, Any], place: Place) -> dict[str, Any]:
    """On every rank: averages that take turns with the plain all-reduce."""
    world, given = Distributed(), structured_gradients(job["numel"], place.rank)
    plain, turns = Plain(given[0], place.ranks), job["turns"]
    averaged = {text: Averaged(text, given, given[0], world) for text in job["codecs"]}
    for _ in range(1 + turns):
        plain()
        for candidate in averaged.values():
            candidate()
    rows = {t: {"seconds": settled(a.seconds, turns), "bytes_sent": a.sent} for t, a in averaged.items()}
    return {"plain": settled(plain.seconds, turns), "codecs": rows}


def _weights(job: dict[str, Any], place: Place) -> dict[str, float | None]:
    return {text: _weight(text, job["numel"], place) for text in job["codecs"]}


def _weight(text: str, numel: int, place: Place) -> float | None:
    """The peak of this process over some averages in place, less what it had before them; the worst rank's."""
    report(place, text)
    codec, world, slot = Codec.parse(text), Distributed(), Slot()
    given = torch.randn(numel, generator=torch.Generator().manual_seed(place.rank))
    weights = torch.randn(numel, generator=torch.Generator().manual_seed(place.ranks))
    dist.barrier()
    before = forget_peak()
    for step in range(3):
        turn = StepInfo(place.rank, place.ranks, 0, step, buffers=world.buffers)
        world.drive(average(codec, given, slot, turn, weights, out=given))
    after = memory("VmHWM")
    beyond = torch.tensor([-1.0 if before is None or after is None else (after - before) / (4 * numel)])
    dist.all_reduce(beyond, dist.ReduceOp.MAX)
    return float(beyond) if beyond >= 0 else None


def forget_peak() -> int | None:
    """Give free memory back, start the kernel's record of the peak anew, and return what is in use; None: it cannot."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError):
        return None
    return memory("VmRSS")


def memory(which: str) -> int | None:
    """Bytes that the kernel books for this process under this name."""
    try:
        found = re.search(rf"^{which}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return 1024 * int(found[1]) if found else None


def growth_table(rows: Sequence[SizeGrowth]) -> Table:
    """Exponents over sizes, for the terminal."""
    sizes = rows[0].sizes
    title = f"growth above {show_size(FITTED_ABOVE)}, up to {show_size(sizes[-1])}: exponents (1: linear)"
    names = ("codec", "encode", "decode + add", "bytes", "encode ms of the largest", "decode ms")
    table = columns(Table(title=title, title_justify="left"), names)
    for row in rows:
        shown = [beside_target(figure, target) for _, figure, target in row.judged() if figure is not None]
        times = (f"{seconds[-1] * 1e3:.2f}" for seconds in (row.encode_seconds, row.decode_seconds))
        table.add_row(row.codec, *shown, f"{row.bytes_exponent:.2f}", *times)
    return table


def ranks_table(rows: Sequence[RankGrowth]) -> Table:
    """Bytes and times over ranks, for the terminal."""
    counts = rows[0].ranks
    title = "growth with ranks on loopback: exponents of bytes / (2 (P-1)/P), and of seconds / plain all_reduce's"
    names = ("codec", "reduction", "bytes", "time", *(f"bytes, {count} ranks" for count in counts))
    table = columns(Table(title=title, title_justify="left"), names, left=2)
    for row in rows:
        sent = (f"{count:,}" for count in row.bytes_sent)
        shown = beside_target(row.bytes_exponent, row.target)
        table.add_row(row.codec, row.reduction, shown, f"{row.time_exponent:.2f}", *sent)
    return table


def memory_table(rows: Sequence[MemoryRow]) -> Table:
    """Peaks of memory, for the terminal."""
    title = f"peak of memory of averages of {show_size(4 * rows[0].numel)}, as a multiple of that, beyond the input"
    table = columns(Table(title=title, title_justify="left"), ("codec", "reduction", "residual", "peak"), left=3)
    for row in rows:
        shown = "not told" if row.beyond is None else beside_target(row.beyond, row.target)
        table.add_row(row.codec, row.reduction, row.feedback, shown)
    return table


if __name__ == "__main__":
    work(sys.argv[1:], measure)
