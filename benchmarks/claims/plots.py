"""Pictures of what was measured for the papers' claims; equal figures give equal bytes."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.claims.errors import QUANTISERS, SELECTORS, Point
from benchmarks.claims.gradiveq import WINDOW, Ages, Sweep
from benchmarks.claims.support import Support
from benchmarks.claims.variance import SCHEMES, Spread
from thinwire_lab.report.extras import drawing_library
from thinwire_lab.report.palette import DASHES, LIGHT, LIGHT_THEME, MARKERS, looks_for
from thinwire_lab.report.plots import STYLE

WIDTH = 9.0
Draw = Callable[[Any], None]


def save_plots(folder: Path, drawings: Mapping[str, tuple[float, Draw]], format: str = "svg") -> list[Path]:
    """Write every drawing (its height in inches, and what draws it) into the folder."""
    matplotlib = drawing_library("matplotlib")
    make_figure = drawing_library("matplotlib.figure").Figure
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with matplotlib.rc_context(STYLE):
        for name, (height, draw) in drawings.items():
            figure = make_figure(figsize=(WIDTH, height), layout="constrained")
            draw(figure)
            written.append(folder / f"{name}.{format}")
            unsigned = {"Date": None, "Creator": None} if format == "svg" else {"Software": None}
            figure.savefig(written[-1], format=format, dpi=110, metadata=unsigned)
    return written


def looks(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour, dash and marker for every label."""
    return {
        label: {
            "color": LIGHT[look.hue],
            "linestyle": DASHES[look.dash][1],
            "marker": MARKERS[look.marker][1],
            "markersize": 3.5,
            "linewidth": 1.3,
            "label": label,
        }
        for label, look in looks_for(list(labels)).items()
    }


def draw_order(figure: Any, sweeps: Sequence[Sweep]) -> None:
    panels = figure.subplots(1, len(sweeps), squeeze=False)[0]
    style = looks(list(sweeps[0].lost))
    for panel, sweep in zip(panels, sweeps, strict=True):
        for multiple in range(sweep.period, max(sweep.lengths) + 1, sweep.period):
            panel.axvline(multiple, color=LIGHT_THEME["muted"], linestyle=":", linewidth=1)
        for form, lost in sweep.lost.items():
            panel.plot(sweep.lengths, [100 * v for v in lost], **style[form])
        panel.set_title(sweep.title, fontsize=9)
        panel.set(xlabel="Slice length K", ylim=(0, None))
    panels[0].set_ylabel("Energy lost, %")
    _legend_below(figure, panels[0], 4)


def draw_age(figure: Any, found: Sequence[Ages]) -> None:
    panels = figure.subplots(1, len(found), squeeze=False)[0]
    for panel, ages in zip(panels, found, strict=True):
        style = looks(list(ages.curves))
        for label, curve in ages.curves.items():
            panel.plot([WINDOW * (at + 0.5) for at in range(len(curve))], [100 * v for v in curve], **style[label])
        panel.set_title(ages.title, fontsize=9)
        panel.set(xlabel="Steps since the basis was learnt", ylim=(0, None))
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=8)
    panels[0].set_ylabel("Energy lost, %")


def draw_errors(figure: Any, found: Mapping[str, Mapping[str, Sequence[Point]]]) -> None:
    """A row for each recording: quantisers on the left, the rest on the right, on the same axes."""
    grid = figure.subplots(len(found), 2, sharex="col", sharey=True, squeeze=False)
    for row, (title, curves) in zip(grid, found.items(), strict=True):
        for panel, family in zip(row, (QUANTISERS, SELECTORS), strict=True):
            style = looks(list(family))
            for name in family:
                points = [p for p in curves[name] if p.bits < 12]  # half floats would squeeze all others
                if points:
                    panel.plot([p.bits for p in points], [100 * p.lost for p in points], **style[name])
            panel.set(xscale="log", yscale="log", ylim=(0.01, 1000))
            panel.set_xticks([0.125, 0.25, 0.5, 1, 2, 4, 8], ["⅛", "¼", "½", "1", "2", "4", "8"])
            panel.minorticks_off()
            if family is QUANTISERS:
                panel.set_xlim(0.9, 10)
            panel.set_title(title, fontsize=9)
        row[0].set_ylabel("Energy lost, %")
    for panel, heading in zip(grid[-1], ("quantisers", "selections, spectra, low rank"), strict=True):
        panel.set_xlabel("Bits for a number")
        panel.legend(title=heading, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, fontsize=8)


def draw_variance(figure: Any, found: Sequence[Spread]) -> None:
    settings = list(dict.fromkeys((s.bits, s.bucket) for s in found))
    panels = figure.subplots(1, len(settings), sharey=True, squeeze=False)[0]
    style = looks(list(SCHEMES))
    for panel, (bits, bucket) in zip(panels, settings, strict=True):
        shown = [s for s in found if (s.bits, s.bucket) == (bits, bucket)]
        for name in SCHEMES:
            look = {**style[name], "linestyle": "", "markersize": 6}
            panel.plot([s.found[name] for s in shown], range(len(shown)), **look)
        panel.set_yticks(range(len(shown)), [s.data for s in shown])
        panel.set_title(f"{bits} bits, buckets of {bucket}", fontsize=9)
        panel.set(xlabel="Relative variance", xscale="log", xlim=(0.01, 20))
        panel.minorticks_off()
    panels[0].invert_yaxis()
    _legend_below(figure, panels[0], 4)


def draw_support(figure: Any, found: Sequence[Support]) -> None:
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for panel, s in zip(panels, found, strict=True):
        style = looks([*s.exchanges, "top-k if ranks were independent"])
        for name, each in s.exchanges.items():
            panel.plot(s.ranks, [100 * e.density for e in each], **style[name])
        alone = [100 * (1 - (1 - 1 / 64) ** count) for count in s.ranks]
        panel.plot(s.ranks, alone, **{**style["top-k if ranks were independent"], "linestyle": ":"})
        panel.set_xscale("log")
        panel.set_xticks(list(s.ranks), [str(count) for count in s.ranks])
        panel.minorticks_off()
        panel.set_title(s.title, fontsize=9)
        panel.set(xlabel="Ranks", ylim=(0, None))
    panels[0].set_ylabel("Numbers that travel, %")
    _legend_below(figure, panels[0], 2)


def _legend_below(figure: Any, panel: Any, columns: int) -> None:
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=8)
