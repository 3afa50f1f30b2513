"""The same plots as files for papers: PNG, or SVG with real vectors; equal results give equal bytes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from thinwire_lab.report.contenders import Contender, Point, ranked, read_contenders
from thinwire_lab.report.extras import drawing_library
from thinwire_lab.report.palette import DASHES, LIGHT, LIGHT_THEME, MARKERS, PALE, PARTS
from thinwire_lab.report.wording import row_names, shortened, show_times

STYLE = {
    "svg.hashsalt": "thinwire",  # otherwise the names of clip paths are random
    "font.family": "DejaVu Sans",  # comes with matplotlib, so it is the same everywhere
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": LIGHT_THEME["grid"],
    "axes.axisbelow": True,
    "hatch.color": "white",
    "legend.frameon": False,
}


def export_plots(results: Path, folder: Path, format: Literal["png", "svg"] = "svg") -> list[Path]:
    """Write one file for each plot that the results have figures for, and say which."""
    matplotlib = drawing_library("matplotlib")
    make_figure = drawing_library("matplotlib.figure").Figure  # not pyplot: no window system, nothing global
    contenders = read_contenders(results)
    drawings: dict[str, tuple[float, Callable[[Any, Sequence[Contender]], bool]]] = {
        "accuracy": (3.6, draw_accuracy),
        "loss": (3.6, draw_loss),
        "speed": (1.1 + 0.28 * len(contenders), draw_speed),
        "parts": (1.5 + 0.28 * len(contenders), draw_parts),
        "layers": (6.0, draw_layers),
    }
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with matplotlib.rc_context(STYLE):
        for name, (height, draw) in drawings.items():
            figure = make_figure(figsize=(6.4, height), layout="constrained")
            if draw(figure, contenders):
                written.append(folder / f"{name}.{format}")
                unsigned = {"Date": None, "Creator": None} if format == "svg" else {"Software": None}
                figure.savefig(written[-1], format=format, dpi=200, metadata=unsigned)
    return written


def draw_accuracy(figure: Any, contenders: Sequence[Contender]) -> bool:
    axes = figure.subplots()
    axes.set(xlabel="Seconds of training", ylabel="Test accuracy, %")
    scaled = [[p.in_units(y=0.01) for p in c.accuracy_by_time()] for c in contenders]
    return draw_curves(axes, contenders, scaled, marked=True)


def draw_loss(figure: Any, contenders: Sequence[Contender]) -> bool:
    axes = figure.subplots()
    axes.set(xlabel="MB sent by each rank", ylabel="Training loss", xscale="log")
    scaled = [[p.in_units(x=1e6) for p in c.loss_by_bytes() if p.x > 0] for c in contenders]
    return draw_curves(axes, contenders, scaled, marked=False)


def draw_curves(axes: Any, contenders: Sequence[Contender], curves: Sequence[Sequence[Point]], *, marked: bool) -> bool:
    """Means over the seeds, with a band from the lowest to the highest."""
    for c, points in zip(contenders, curves, strict=True):
        if not points:
            continue
        look = {"color": LIGHT[c.look.hue], "linestyle": DASHES[c.look.dash][1], "linewidth": 1.4}
        marker = MARKERS[c.look.marker][1] if marked or len(points) == 1 else None
        xs = [p.x for p in points]
        axes.plot(xs, [p.y for p in points], label=literal(c.label), marker=marker, markersize=3.5, **look)
        if len(c.logs) > 1:
            low, high = [p.low for p in points], [p.high for p in points]
            axes.fill_between(xs, low, high, color=look["color"], alpha=0.15, linewidth=0)
    if any(curves):
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return any(curves)


def draw_speed(figure: Any, contenders: Sequence[Contender]) -> bool:
    rows = ranked(contenders, lambda s: s.speed_up)
    axes = figure.subplots()
    for place, c in enumerate(rows):
        up = c.standing.speed_up or 0.0
        axes.barh(
            place,
            up,
            color="none" if c.standing.shortfall else LIGHT[c.look.hue],
            edgecolor=LIGHT_THEME["muted"] if c.standing.shortfall else LIGHT[c.look.hue],
            hatch="//" if c.standing.shortfall or up < 1 else "",
            height=0.7,
        )
        reason = f" ({c.standing.shortfall})" if c.standing.shortfall else ""
        grey = LIGHT_THEME["muted" if reason else "text"]
        words = f" {show_times(up)}{' slower' * (up < 1)}{reason}"
        axes.text(max(up, 1.0), place, literal(words), va="center", color=grey)
    axes.axvline(1, color=LIGHT_THEME["muted"], linestyle="--", linewidth=1)
    axes.set_xlabel("Times as fast as uncompressed")
    name_rows(axes, rows)
    return bool(rows)


def draw_parts(figure: Any, contenders: Sequence[Contender]) -> bool:
    rows = ranked(contenders, lambda s: -s.step_seconds if s.step_seconds is not None else None)
    axes = figure.subplots()
    parts = [c.where_step_goes() for c in rows]
    starts = [0.0] * len(rows)
    for part, (says, _, hatch, is_pale) in PARTS.items():
        if any(part in row for row in parts):
            widths = [row.get(part, 0.0) for row in parts]
            opacity = PALE if is_pale else 1.0
            colours = [(LIGHT[c.look.hue], opacity) for c in rows]
            axes.barh(range(len(rows)), widths, left=starts, color=colours, hatch=hatch, height=0.7)
            axes.barh([0], [0.0], color=[(LIGHT_THEME["muted"], opacity)], hatch=hatch, label=says)  # for the legend
            starts = [start + width for start, width in zip(starts, widths, strict=True)]
    axes.set_xlabel("Seconds of a step (median)")
    name_rows(axes, rows)
    if rows:
        figure.legend(loc="outside upper center", ncols=3)
    return bool(rows)


def draw_layers(figure: Any, contenders: Sequence[Contender]) -> bool:
    drawn = [c for c in contenders if c.layers()]
    if not drawn:
        return False
    above, below = figure.subplots(2, sharex=True)
    is_measured = False
    for order, c in enumerate(drawn):
        xs = [place + 0.7 * ((order + 0.5) / len(drawn) - 0.5) for place in range(len(c.layers()))]
        look = {"color": LIGHT[c.look.hue], "marker": MARKERS[c.look.marker][1], "linestyle": "", "markersize": 4}
        above.plot(xs, [layer.wire_ratio for layer in c.layers()], label=literal(c.label), **look)
        # Not a number is not drawn: an exact layer has no place on a logarithmic axis.
        errors = [c.layer_error(place) or float("nan") for place in range(len(xs))]
        below.plot(xs, errors, **look)
        is_measured = is_measured or any(error > 0 for error in errors)
    above.set(ylabel="Times fewer bytes than fp32", yscale="log")
    below.set(ylabel="Relative error")
    if is_measured:  # a logarithmic axis without any value has no limits
        below.set(yscale="log")
    names = max((c.layers() for c in drawn), key=len)
    below.set_xticks(
        range(len(names)), [literal(shortened(layer.name, 26)) for layer in names], rotation=60, ha="right"
    )
    figure.legend(loc="outside right center")
    return True


def name_rows(axes: Any, rows: Sequence[Contender]) -> None:
    """Bars by name, the first on top."""
    axes.set_yticks(range(len(rows)), [literal(name) for name in row_names([c.label for c in rows])])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")


def literal(text: str) -> str:
    """Text that is not read as a formula, nor (by its underscore) as something to leave out of the legend."""
    escaped = text.replace("$", r"\$")
    return "\N{ZERO WIDTH SPACE}" + escaped if escaped.startswith("_") else escaped
