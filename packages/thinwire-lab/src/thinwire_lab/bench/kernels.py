"""How fast numbers become messages and messages numbers, relative to copying them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from rich.table import Table
from torch import Tensor

from thinwire_lab.bench.kernel_subjects import EAGER, INTEGERS, MASK, PEERS, subject
from thinwire_lab.bench.results import BenchError, Target, at_least, beside_target, columns, show_size
from thinwire_lab.bench.timing import best_seconds

# What encoding and decoding must reach at least, as a share of the speed of Tensor.copy_ (64 MiB, 1 thread).
TARGETS: dict[str, tuple[float | None, float | None]] = {
    "qsgd(bits=4)": (0.7, 0.6),
    "qsgd(bits=2)": (None, None),
    "qsgd(bits=8)": (None, None),
    "nuqsgd(bits=4, norm=max)": (0.55, 0.55),
    "nuqsgd(bits=4, bucket=8192)": (0.55, 0.55),
    "nuqsgd(bits=2, norm=max)": (None, None),
    "nuqsgd(bits=8, norm=max)": (None, None),
    "rangefloat(bits=8, mantissa=3)": (0.55, 0.55),
    "rangefloat(bits=8)": (None, None),
    INTEGERS: (None, None),
    "sign": (0.6, 0.6),
    "ternary": (None, None),
    "fp16": (0.8, 0.8),
    "bf16": (0.8, 0.8),
    "topk(density=0.01)": (0.3, None),
    MASK: (0.3, None),
    "qsgd(bits=4) | huffman": (0.06, 0.06),
    "qsgd(bits=2, norm=l2) | elias": (0.06, 0.06),
}
OVER_EAGER = {"qsgd(bits=4)": 20.0}  # times as fast as QSGD in eager torch
SIZES = (2**12, 2**18, 2**26)  # bytes
THREADS = (1, 2)
JUDGED = (2**24, 1)  # numbers and threads for which the targets are meant


@dataclass(frozen=True)
class KernelRow:
    """One codec at one size: shares of the speed of copying, the size of its message, times as fast as eager torch."""

    kind: ClassVar[str] = "kernel"

    codec: str
    numel: int
    threads: int
    copy_gbs: float
    encode: float
    decode: float | None
    bits: float
    encode_target: Target | None = None
    decode_target: Target | None = None
    over_eager: float | None = None
    over_eager_target: Target | None = None

    @property
    def title(self) -> str:
        return f"{self.codec}, {circumstance(self.numel, self.threads)}"

    def judged(self) -> list[tuple[str, float | None, Target | None]]:
        return [
            ("encode", self.encode, self.encode_target),
            ("decode", self.decode, self.decode_target),
            ("over eager torch", self.over_eager, self.over_eager_target),
        ]


def bench_kernels(
    numel: int = JUDGED[0],
    threads: int = 1,
    only: str | None = None,
    turns: int = 7,
    tell: Callable[[str], None] | None = None,
) -> list[KernelRow]:
    """Encode, and decode and add, for every codec of the table and its rivals, whose names contain `only`."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x = torch.randn(numel, generator=torch.Generator().manual_seed(0))
        chosen = [name for name in (*TARGETS, *PEERS) if only is None or only.lower() in name.lower()]
        if not chosen:
            raise BenchError(f"no codec of the benchmark contains {only!r}; it knows {', '.join((*TARGETS, *PEERS))}.")
        rows = []
        for name in chosen:
            if tell is not None:
                tell(f"{name}, {circumstance(numel, threads)}")
            rows.append(_row(name, x, threads, turns))
        return _beside_eager(rows)
    finally:
        torch.set_num_threads(before)


def _row(name: str, x: Tensor, threads: int, turns: int) -> KernelRow:
    out = torch.empty_like(x).zero_()
    timed = subject(name, x, out)
    candidates = {"copy": lambda: out.copy_(x), "encode": timed.encode}
    if timed.decode is not None:
        candidates["decode"] = timed.decode
    seconds = best_seconds(candidates, turns)
    aims = TARGETS.get(name, (None, None)) if (x.numel(), threads) == JUDGED else (None, None)
    return KernelRow(
        name,
        x.numel(),
        threads,
        4e-9 * x.numel() / seconds["copy"],
        seconds["copy"] / seconds["encode"],
        seconds["copy"] / seconds["decode"] if "decode" in seconds else None,
        timed.bits,
        encode_target=None if aims[0] is None else at_least(aims[0]),
        decode_target=None if aims[1] is None else at_least(aims[1]),
    )


def _beside_eager(rows: list[KernelRow]) -> list[KernelRow]:
    """Set our QSGD beside eager torch's: both are shares of a copy timed in the same turns."""
    eager = next((row.encode for row in rows if row.codec == EAGER), None)
    if eager is None:
        return rows
    return [
        replace(row, over_eager=row.encode / eager, over_eager_target=_eager_target(row))
        if row.codec.startswith("qsgd(") and "|" not in row.codec
        else row
        for row in rows
    ]


def _eager_target(row: KernelRow) -> Target | None:
    aim = OVER_EAGER.get(row.codec)
    return at_least(aim) if aim is not None and (row.numel, row.threads) == JUDGED else None


def circumstance(numel: int, threads: int) -> str:
    return f"{show_size(4 * numel)}, {threads} thread{'s' if threads > 1 else ''}"


def kernel_table(rows: Sequence[KernelRow]) -> Table:
    """Rows of one size and number of threads, for the terminal; a target that is missed is red."""
    first = rows[0]
    title = f"{circumstance(first.numel, first.threads)}: shares of the speed of Tensor.copy_, beside their targets"
    names = ("codec", "encode", "decode + add", "bits", "encode / eager torch", "copy GB/s")
    table = columns(Table(title=title, title_justify="left"), names)
    for row in rows:
        shown = ["" if figure is None else beside_target(figure, target) for _, figure, target in row.judged()]
        table.add_row(row.codec, *shown[:2], f"{row.bits:.2f}", shown[2], f"{row.copy_gbs:.1f}")
    return table
