"""Metrics for people: a Rich table, and scalars for TensorBoard."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from thinwire.ddp.hook import Handle


def scalars(metrics: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The plain numbers of one step."""
    for name, value in metrics.items():
        if isinstance(value, (int, float)) and name != "step":
            yield name, float(value)


def report_table(handle: "Handle") -> Table:
    """One row a codec: what it carries, what it saves, what it loses; the caption tells where the time went."""
    last = handle.metrics()
    table = Table(title=f"thinwire after {handle.step} steps", caption=_times(last), title_justify="left")
    columns = (
        "codec",
        "parameters",
        "numbers",
        "ratio in numbers",
        "bytes sent",
        "ratio on the wire",
        "relative error",
    )
    for column in columns:
        table.add_column(column, justify="left" if column == "codec" else "right")
    for codec, tally in last.get("codecs", {}).items():
        error = tally.get("relative_error")
        table.add_row(
            codec,
            f"{tally['parameters']:,}",
            f"{tally['elements']:,}",
            f"{tally['element_ratio']:.1f}x",
            f"{tally['bytes_sent']:,}",
            f"{tally['wire_ratio']:.1f}x",
            "" if error is None else f"{error:.3f}",
        )
    return table


def _times(last: dict[str, Any]) -> str:
    if not last:
        return "no step yet"
    ms = {name: last[f"{name}_seconds"] * 1e3 for name in ("encode", "communicate", "decode", "exposed")}
    return (
        f"sent {last['bytes_sent']:,} bytes in {last['rounds']} rounds, {last['wire_ratio']:.1f}x less than fp32; "
        + ", ".join(f"{name} {value:.1f} ms" for name, value in ms.items())
    )
