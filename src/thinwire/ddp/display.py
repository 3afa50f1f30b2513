"""Metrics as a Rich table, and for loggers."""

import inspect
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.table import Table

from thinwire.ddp.metrics import StepMetrics

if TYPE_CHECKING:
    from thinwire.ddp.handle import Handle


def log_function(logger: Any) -> Callable[[dict[str, float], int], None]:
    """A function that gives a logger numbers by name, and their step; a logger without a known interface is refused."""
    if not isinstance(logger, type):
        if callable(getattr(logger, "add_scalar", None)):
            return lambda values, step: _add_scalars(logger, values, step)
        for method in ("log_metrics", "log"):
            if _takes_step(getattr(logger, method, None)):
                # looked up in each step: wandb.log is another function after wandb.init()
                return lambda values, step: getattr(logger, method)(values, step=step)
    given = f"the class {logger.__name__}" if isinstance(logger, type) else f"an object of type {type(logger).__name__}"
    raise TypeError(
        "log_to needs a TensorBoard SummaryWriter (add_scalar), a Weights & Biases run (log(dict, step=)) or the mlflow"
        f" module (log_metrics(dict, step=)); got {given}, which has none of these methods. For any other logger append"
        " a function to handle.on_step."
    )


def step_logger(logger: Any, prefix: str) -> Callable[[StepMetrics], None]:
    """A function for `on_step` that gives a logger the numbers of a step as `prefix`/name."""
    log = log_function(logger)

    def write(metrics: StepMetrics) -> None:
        log({f"{prefix}/{name}": value for name, value in metrics.scalars().items()}, metrics.step)

    return write


def _add_scalars(writer: Any, values: dict[str, float], step: int) -> None:
    for name, value in values.items():
        writer.add_scalar(name, value, step)


def _takes_step(method: Any) -> bool:
    """Whether a method has an argument `step`: `log` of Python's own loggers has not."""
    try:
        return "step" in inspect.signature(method).parameters
    except (TypeError, ValueError):  # not a function, or one that does not tell
        return False


def report_table(handle: "Handle") -> Table:
    """One row for each codec: its elements, its bytes, its error; the caption has the times.

    A column of which nothing is known is left out.
    """
    last = handle.metrics()
    table = Table(title=f"thinwire after {handle.step} steps", caption=_times(last), title_justify="left")
    columns = (
        _planned(handle) if last is None or not last.codecs else _measured(last, handle.engine.meter.last_measured)
    )
    shown = {title: cells for title, cells in columns.items() if any(cells)}
    for title in shown:
        table.add_column(title, justify="left" if title == "codec" else "right")
    for row in zip(*shown.values(), strict=True):
        table.add_row(*row)
    return table


def _planned(handle: "Handle") -> dict[str, list[str]]:
    """What is known before a step was averaged."""
    parameters, elements = Counter[str](), Counter[str]()
    for decision in handle.plan:
        parameters[str(decision.codec)] += 1
        elements[str(decision.codec)] += decision.numel
    return {
        "codec": list(parameters),
        "parameters": [f"{count:,}" for count in parameters.values()],
        "elements": [f"{count:,}" for count in elements.values()],
    }


def _measured(last: StepMetrics, measured: StepMetrics | None) -> dict[str, list[str]]:
    rows = last.codecs.values()
    errors = {} if measured is None else {name: codec.relative_error for name, codec in measured.codecs.items()}
    at = "" if measured is None or measured.step == last.step else f" at step {measured.step}"
    return {
        "codec": list(last.codecs),
        "parameters": [f"{row.parameters:,}" for row in rows],
        "elements": [f"{row.elements:,}" for row in rows],
        "ratio of elements": [f"{row.element_ratio:.1f}x" for row in rows],
        "bytes sent": [f"{row.bytes_sent:,}" for row in rows],
        "ratio of bytes": [f"{row.wire_ratio:.1f}x" for row in rows],
        f"relative error{at}": [_shown(errors.get(name)) for name in last.codecs],
    }


def _shown(error: float | None) -> str:
    return "" if error is None else f"{error:.3f}"


def _times(last: StepMetrics | None) -> str:
    if last is None:
        return "no step yet"
    ms = {name: getattr(last, f"{name}_seconds") * 1e3 for name in ("encode", "communicate", "decode", "exposed")}
    inside = f", and {last.bytes_inside:,} bytes inside its host" if last.bytes_inside else ""
    return (
        f"sent {last.bytes_sent:,} bytes in {last.rounds} rounds, {last.wire_ratio:.1f}x less than fp32{inside}; "
        + ", ".join(f"{name} {value:.1f} ms" for name, value in ms.items())
    )
