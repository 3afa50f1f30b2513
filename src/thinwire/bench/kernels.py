"""How fast numbers become messages and messages numbers, on one core, relative to copying them."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from thinwire import Codec
from thinwire.bench.timing import best_seconds

# Codec, and what encoding and decoding must reach at least as a share of the speed of Tensor.copy_ (64 MiB, 1 thread).
TARGETS: dict[str, tuple[float, float]] = {
    "qsgd(bits=4)": (0.7, 0.6),
    "qsgd(bits=2)": (0.0, 0.0),
    "qsgd(bits=8)": (0.0, 0.0),
    "nuqsgd(bits=4, norm=max)": (0.55, 0.55),
    "nuqsgd(bits=4, bucket=8192)": (0.55, 0.55),
    "rangefloat(bits=8, mantissa=3)": (0.55, 0.55),
    "rangefloat(bits=8)": (0.0, 0.0),
    "sign": (0.6, 0.6),
    "ternary": (0.0, 0.0),
    "fp16": (0.8, 0.8),
    "bf16": (0.8, 0.8),
    "topk(density=0.01)": (0.3, 0.0),
    "qsgd(bits=4) | huffman": (0.06, 0.06),
    "qsgd(bits=2, norm=l2) | elias": (0.06, 0.06),
}


@dataclass(frozen=True)
class KernelRow:
    """One codec at one size: shares of the speed of copying, and the size of its message."""

    codec: str
    numel: int
    threads: int
    copy_gbs: float
    encode: float
    decode: float
    bits: float
    encode_target: float
    decode_target: float


def bench_kernels(numel: int = 1 << 24, threads: int = 1, only: str | None = None, turns: int = 7) -> list[KernelRow]:
    """Encode, and decode and add, for every codec of the table."""
    torch.set_num_threads(threads)
    x = torch.randn(numel, generator=torch.Generator().manual_seed(0))
    return [_row(text, x, threads, turns, targets) for text, targets in TARGETS.items() if only is None or only in text]


def _row(text: str, x: Tensor, threads: int, turns: int, targets: tuple[float, float]) -> KernelRow:
    codec, target = Codec.parse(text), torch.empty_like(x)
    message = codec.encode(x)
    seconds = best_seconds(
        {
            "copy": lambda: target.copy_(x),
            "encode": lambda: codec.encode(x),
            "decode": lambda: codec.decode(message, x.numel(), out=target, add=True),
        },
        turns,
    )
    return KernelRow(
        str(codec),
        x.numel(),
        threads,
        4e-9 * x.numel() / seconds["copy"],
        seconds["copy"] / seconds["encode"],
        seconds["copy"] / seconds["decode"],
        8 * message.numel() / max(1, x.numel()),
        *targets,
    )


def kernel_table(rows: list[KernelRow]) -> Table:
    """For the terminal; a target that is missed is marked."""
    table = Table(title="share of the speed of Tensor.copy_ (target in brackets)")
    for column in ("codec", "numbers", "threads", "copy GB/s", "encode", "decode + add", "bits a number"):
        table.add_column(column, justify="left" if column == "codec" else "right", no_wrap=column == "codec")
    for row in rows:
        table.add_row(
            row.codec,
            f"{row.numel:,}",
            str(row.threads),
            f"{row.copy_gbs:.1f}",
            _share(row.encode, row.encode_target),
            _share(row.decode, row.decode_target),
            f"{row.bits:.2f}",
        )
    return table


def _share(value: float, target: float) -> str:
    if not target:
        return f"{value:.2f}"
    return f"{value:.2f} ({target:g})" if value >= target else f"[bold red]{value:.2f}[/] ({target:g})"


def kernel_records(rows: list[KernelRow]) -> list[dict[str, Any]]:
    return [{"kind": "kernel", **asdict(row)} for row in rows]
