"""The plots of the page, as plotly reads them.

Colours are tokens ("@c3"): the page puts in the value of its CSS variable, which differs in light and dark. Text that
comes from results is escaped here, because plotly reads some HTML in labels.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

from thinwire_lab.report.contenders import Contender, Point, ranked
from thinwire_lab.report.palette import DASHES, MARKERS, PARTS
from thinwire_lab.report.wording import (
    row_names,
    shortened,
    show_bytes,
    show_percent,
    show_seconds,
    show_times,
    significant,
)

Figure = dict[str, Any]

TEXT_ALONE = "%{text}<extra></extra>"  # labels stand in the text, where plotly does not look for more templates
HATCHED = {"fillmode": "overlay", "fgcolor": "@surface", "size": 7, "solidity": 0.25}
OUTLINE = {"fillmode": "overlay", "fgcolor": "@muted", "size": 7, "solidity": 0.1}


def accuracy_figure(contenders: Sequence[Contender]) -> Figure:
    """Accuracy against the wall-clock."""
    traces = []
    for place, c in enumerate(contenders):
        points = [p.in_units(y=0.01) for p in c.accuracy_by_time()]
        says = [f"after {show_seconds(p.x)}<br>accuracy {show_percent(p.y / 100)}{_range(c, p, '%')}" for p in points]
        traces += curve_traces(c, place, points, says, markers=True)
    x = _axis("Seconds of training", rangemode="tozero")
    figure = _figure(traces, height=430, x=x, y=_axis(), titles=[("Test accuracy, %", 1.0)])
    target = contenders[0].logs[0].run.target_accuracy if contenders else None
    if target is not None:
        figure["layout"]["shapes"] = [_line(x0=0, x1=1, xref="paper", y0=100 * target, y1=100 * target)]
    return figure


def loss_figure(contenders: Sequence[Contender]) -> Figure:
    """Training loss against bytes sent, on a logarithmic axis of bytes: codecs differ by orders of magnitude."""
    traces = []
    for place, c in enumerate(contenders):
        points = [p.in_units(x=1e6) for p in c.loss_by_bytes() if p.x > 0]
        says = [f"step {p.step}, {show_bytes(p.x * 1e6)} sent<br>loss {p.y:.4f}{_range(c, p)}" for p in points]
        traces += curve_traces(c, place, points, says, markers=False)
    x = _axis("MB sent by each rank (logarithmic)", type="log", dtick=1)
    return _figure(traces, height=430, x=x, y=_axis(), titles=[("Training loss", 1.0)])


def curve_traces(c: Contender, place: int, points: Sequence[Point], says: list[str], *, markers: bool) -> list[Figure]:
    """A line of means, and behind it the band between the lowest and the highest seed."""
    if not points:
        return []
    shared = {"type": "scatter", "meta": place, "name": escape(c.label), "showlegend": False}
    xs = [p.x for p in points]
    band = {
        "x": xs + xs[::-1],
        "y": [p.high for p in points] + [p.low for p in reversed(points)],
        "mode": "lines",
        "line": {"width": 0},
        "fill": "toself",
        "fillcolor": f"@{c.look.token}-band",
        "hoverinfo": "skip",
    }
    line = {
        "x": xs,
        "y": [p.y for p in points],
        "mode": "lines+markers" if markers or len(points) == 1 else "lines",
        "line": {"color": f"@{c.look.token}", "width": 2.2, "dash": DASHES[c.look.dash][0]},
        "marker": {"color": f"@{c.look.token}", "size": 7, "symbol": MARKERS[c.look.marker][0]},
        "text": [f"<b>{escape(c.label)}</b><br>{words}" for words in says],
        "hovertemplate": TEXT_ALONE,
    }
    return [{**shared, **band}] * (len(c.logs) > 1) + [{**shared, **line}]


def speed_figure(contenders: Sequence[Contender]) -> Figure:
    """Speed-up of the whole training over the uncompressed one; who loses is hatched, who does not count is empty."""
    rows = ranked(contenders, lambda s: s.speed_up)
    ups = [c.standing.speed_up or 0.0 for c in rows]
    counted = {"y": [], "x": [], "marker": {"color": [], "pattern": {**HATCHED, "shape": []}}, "hovertext": []}
    empty = {"y": [], "x": [], "marker": _empty_bar(), "hovertext": []}
    for place, (c, up) in enumerate(zip(rows, ups, strict=True)):
        bars: Figure = empty if c.standing.shortfall else counted
        bars["y"].append(place)
        bars["x"].append(up)
        bars["hovertext"].append(_speed_hover(c, up))
        if bars is counted:
            bars["marker"]["color"].append(f"@{c.look.token}")
            bars["marker"]["pattern"]["shape"].append("" if up >= 1 else "/")
    shared = {"type": "bar", "orientation": "h", "width": 0.68, "hoverinfo": "text", "showlegend": False}
    # Beside the bar, or beside the line at 1 for those who do not reach it.
    words = {
        "type": "scatter",
        "mode": "text",
        "x": [max(up, 1.0) for up in ups],
        "y": list(range(len(rows))),
        "text": [f" {show_times(up)}{' slower' * (up < 1)}{_short_reason(c)}" for c, up in zip(rows, ups, strict=True)],
        "textposition": "middle right",
        "textfont": {"color": ["@muted" if c.standing.shortfall else "@text" for c in rows]},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    room = 1.9 if empty["x"] else 1.35  # for the words beside the longest bar
    x = _axis("Times as fast as uncompressed", range=[0, room * max([1.0, *ups])], fixedrange=True)
    figure = _figure(
        [{**shared, **counted}, {**shared, **empty}, words], height=_bars_height(rows), x=x, y=_rows_axis(rows)
    )
    figure["layout"]["shapes"] = [_line(x0=1, x1=1, y0=0, y1=1, yref="paper")]
    figure["layout"]["barmode"] = "overlay"
    return figure


def _empty_bar() -> Figure:
    """The marker of speed that does not count: no colour, because colours are codecs."""
    return {"color": "@surface", "line": {"color": "@muted", "width": 1}, "pattern": {**OUTLINE, "shape": "/"}}


def _short_reason(c: Contender) -> str:
    """The accuracy of one that does not count, beside its bar; the reason in full stands in the table."""
    s = c.standing
    if not s.shortfall:
        return ""
    return f", accuracy {100 * s.accuracy.mean:.1f} %" if s.accuracy else ", no accuracy"


def _speed_hover(c: Contender, up: float) -> str:
    lines = [
        f"<b>{escape(c.label)}</b>",
        f"mean step {show_seconds(c.standing.mean_seconds)}",
        f"speed-up {up:.3f}",
        f"of the median step {show_times(c.standing.steady_speed_up)}",
        escape(f"does not count: {c.standing.shortfall}") if c.standing.shortfall else "",
    ]
    return "<br>".join(filter(None, lines))


def parts_figure(contenders: Sequence[Contender]) -> Figure:
    """Where the step goes, as stacked bars, the shortest step on top; a colour is a codec, a texture a part."""
    rows = ranked(contenders, lambda s: -s.step_seconds if s.step_seconds is not None else None)
    parts = [c.where_step_goes() for c in rows]
    traces = []
    for part, (says, pattern, _, is_pale) in PARTS.items():
        if not any(part in row for row in parts):
            continue
        colours = [f"@{c.look.token}{'-pale' * is_pale}" for c in rows]
        traces.append({
            "type": "bar",
            "orientation": "h",
            "name": says,
            "y": list(range(len(rows))),
            "x": [row.get(part) for row in parts],
            "width": 0.68,
            "marker": {"color": colours, "pattern": {**HATCHED, "shape": pattern}},
            "hovertext": [_part_hover(c, says, row.get(part)) for c, row in zip(rows, parts, strict=True)],
            "hoverinfo": "text",
            "showlegend": False,  # plotly's would show the colour of one codec; the page has its own
        })  # fmt: skip
    x = _axis("Seconds of a step (median)", fixedrange=True)
    figure = _figure(traces, height=_bars_height(rows), x=x, y=_rows_axis(rows))
    figure["layout"]["barmode"] = "stack"
    return figure


def layers_figure(contenders: Sequence[Contender]) -> Figure:
    """Compression (above) and relative error (below) of every layer."""
    drawn = [(place, c) for place, c in enumerate(contenders) if c.layers()]
    longest = max((c.layers() for _, c in drawn), key=len, default=[])
    traces = []
    for order, (place, c) in enumerate(drawn):
        # Side by side within a layer, so that equal values do not hide each other.
        xs = [layer + 0.7 * ((order + 0.5) / len(drawn) - 0.5) for layer in range(len(c.layers()))]
        says = _layer_hover(c)
        look = {"color": f"@{c.look.token}", "size": 8, "symbol": MARKERS[c.look.marker][0]}
        ratios = [layer.wire_ratio for layer in c.layers()]
        errors = [c.layer_error(layer) or None for layer in range(len(xs))]
        for ys, axis in ((ratios, "y"), (errors, "y2")):
            traces.append({
                "type": "scatter", "mode": "markers", "meta": place, "name": escape(c.label), "showlegend": False,
                "x": xs, "y": ys, "yaxis": axis, "marker": look, "text": says,
                "hovertemplate": TEXT_ALONE,
            })  # fmt: skip
    names = [escape(shortened(layer.name, 26)) for layer in longest]
    x = _axis(tickmode="array", tickvals=list(range(len(names))), ticktext=names, tickangle=-55, anchor="y2")
    x |= {"range": [-0.6, len(names) - 0.4], "showgrid": False, "zeroline": False}
    titles = [("Times fewer bytes than fp32", 1.0), ("Relative error of the averaged gradient", 0.44)]
    figure = _figure(traces, height=640, x=x, y=_log_axis("×", domain=[0.56, 1]), titles=titles)
    figure["layout"]["yaxis2"] = _log_axis("", domain=[0, 0.44])
    bands = [{"type": "rect", "x0": i - 0.5, "x1": i + 0.5, "y0": 0, "y1": 1} for i in range(1, len(names), 2)]
    style = {"yref": "paper", "fillcolor": "@stripe", "line": {"width": 0}, "layer": "below"}
    figure["layout"]["shapes"] = [band | style for band in bands]
    return figure


def _range(c: Contender, p: Point, unit: str = "") -> str:
    """The spread over the seeds, for a hover text."""
    return f"<br>{len(c.logs)} seeds: {p.low:.4g} to {p.high:.4g} {unit}" if len(c.logs) > 1 else ""


def _part_hover(c: Contender, part: str, seconds: float | None) -> str:
    s = c.standing
    share = f", {100 * seconds / s.step_seconds:.0f} % of the step" if seconds is not None and s.step_seconds else ""
    busy = [("encode", s.encode_seconds), ("communicate", s.communicate_seconds), ("decode", s.decode_seconds)]
    work = ", ".join(f"{name} {show_seconds(value)}" for name, value in busy if value is not None)
    lines = [f"<b>{escape(c.label)}</b>, step {show_seconds(s.step_seconds)}", f"{part} {show_seconds(seconds)}{share}"]
    return "<br>".join(lines + [f"with what the backward pass hides: {work}"] * bool(work))


def _layer_hover(c: Contender) -> list[str]:
    texts = []
    for place, layer in enumerate(c.layers()):
        error = c.layer_error(place)
        shape = "×".join(map(str, layer.shape))
        texts.append(
            f"<b>{escape(c.label)}</b><br>{escape(layer.name)}, {shape} = {layer.numel} numbers<br>"
            f"{escape(layer.codec)} ({escape(layer.why)})<br>"
            f"{show_times(layer.wire_ratio)} fewer bytes: {show_bytes(layer.wire_bytes)} a step<br>"
            f"relative error {'not measured' if error is None else significant(error)}"
        )
    return texts


def _line(**ends: Any) -> Figure:
    return {"type": "line", **ends, "line": {"color": "@muted", "width": 1.5, "dash": "dash"}}


def _axis(title: str = "", **options: Any) -> Figure:
    shared: Figure = {"gridcolor": "@grid", "linecolor": "@grid", "zeroline": False, "automargin": True, "ticks": ""}
    named = {"title": {"text": title, "standoff": 12, "font": {"size": 13, "color": "@muted"}}} if title else {}
    return shared | named | options


def _log_axis(unit: str, **options: Any) -> Figure:
    """Decades written out, with 2 and 5 between them."""
    ticks = [step * 10.0**decade for decade in range(-7, 5) for step in (1, 2, 5)]
    texts = [f"{tick:g}{unit}" if tick >= 1e-4 else f"{tick:.0e}" for tick in ticks]
    shown = [text if text.lstrip("0.")[0] in "1" or tick > 1 else "" for tick, text in zip(ticks, texts, strict=True)]
    return _axis(type="log", tickmode="array", tickvals=ticks, ticktext=shown, **options)


def _rows_axis(rows: Sequence[Contender]) -> Figure:
    """Bars by name, the first on top."""
    names = [f"{escape(name)}  " for name in row_names([c.label for c in rows])]
    ticks = {"tickmode": "array", "tickvals": list(range(len(rows))), "ticktext": names}
    return _axis() | ticks | {"range": [len(rows) - 0.45, -0.55], "showgrid": False, "fixedrange": True}


def _bars_height(rows: Sequence[Contender]) -> int:
    return 130 + 36 * max(1, len(rows))


def _figure(
    traces: list[Figure], *, height: int, x: Figure, y: Figure, titles: Sequence[tuple[str, float]] = ()
) -> Figure:
    """A plot whose vertical axes are named above them, which leaves the width of a phone to the data."""
    place = {"x": 0, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom", "yshift": 8}
    words = {"showarrow": False, "font": {"color": "@muted", "size": 13}}
    layout: Figure = {
        "height": height,
        "margin": {"l": 8, "r": 16, "t": 36 if titles else 8, "b": 8},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "@muted", "activecolor": "@text"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "@text"},
        "hoverlabel": {"bgcolor": "@surface", "bordercolor": "@grid", "font": {"color": "@text"}, "align": "left"},
        "hovermode": "closest",
        "xaxis": x,
        "yaxis": y,
        "uirevision": "kept",  # zooming survives a change of theme
        "annotations": [{"text": text, "y": y, **place, **words} for text, y in titles],
    }
    return {"data": traces, "layout": layout}
