"""One self-contained page: plots to look at, the table behind them, and how to repeat it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from thinwire._version import __version__
from thinwire_lab.report.cards import headline_cards
from thinwire_lab.report.contenders import Contender, ranked, read_contenders
from thinwire_lab.report.decisions import decisions_html
from thinwire_lab.report.extras import drawing_library
from thinwire_lab.report.figures import (
    Figure,
    accuracy_figure,
    layers_figure,
    loss_figure,
    parts_figure,
    speed_figure,
)
from thinwire_lab.report.palette import DARK, DARK_THEME, DASHES, LIGHT, LIGHT_THEME, PALE, PARTS
from thinwire_lab.report.plots import export_plots
from thinwire_lab.report.tables import facts, final_table, notices, subtitle
from thinwire_lab.report.wording import show_bytes, show_percent, show_seconds, show_times

__all__ = ["export_plots", "write_page"]


@dataclass(frozen=True)
class Panel:
    """A plot with its words; `says` is what a reader who cannot see it is told."""

    name: str
    title: str
    caption: str
    says: str
    figure: Figure

    def html(self) -> str:
        return (
            f'<figure class="panel"><figcaption><h2>{self.title}</h2>{self.caption}</figcaption>'
            f'<div id="{self.name}" role="img" aria-label="{escape(self.says)}"></div></figure>'
        )


def write_page(results: Path, output: Path) -> None:
    """Write the report on a file of results; it loads nothing from anywhere."""
    plotly = drawing_library("plotly.offline").get_plotlyjs()
    contenders = read_contenders(results)
    runs = [log.run for c in contenders for log in c.logs]
    curves, bars = curve_panels(contenders), bar_panels(contenders)
    parts = {
        "style": theme_style() + template("page.css"),
        "subtitle": subtitle(runs),
        "notices": notices(contenders),
        "cards": headline_cards(contenders),
        "plots": plots_html(contenders, curves, bars),
        "table": panel_html("All figures", "Click on a heading to sort.", table_html(contenders))
        + panel_html("What auto decided", "And what it went by.", decisions_html(contenders)),
        "facts": panel_html("How to repeat this", "The command, the versions and the machine.", facts(runs)),
        "version": escape(__version__),
        "figures": script_json({panel.name: panel.figure for panel in curves + bars}),
        "plotly": plotly,
        "script": template("page.js"),
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(Template(template("page.html")).substitute(parts), encoding="utf-8")


def template(name: str) -> str:
    return (files("thinwire_lab.report") / "template" / name).read_text(encoding="utf-8")


def script_json(value: object) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def theme_style() -> str:
    """The colours of both themes as CSS variables: the system's choice unless the reader makes one."""

    def rules(theme: dict[str, str], hues: Sequence[str], scheme: str) -> str:
        lines = {f"c{i}": hue for i, hue in enumerate(hues)}
        bands = {f"c{i}-band": f"{hue}2e" for i, hue in enumerate(hues)}
        pale = {f"{name}-pale": f"{colour}{round(255 * PALE):02x}" for name, colour in (theme | lines).items()}
        variables = "".join(f"--{name}: {colour}; " for name, colour in (theme | lines | bands | pale).items())
        return f"color-scheme: {scheme}; {variables}"

    light = rules(LIGHT_THEME, LIGHT, "light") + '--other-theme: "☾ Dark";'
    dark = rules(DARK_THEME, DARK, "dark") + '--other-theme: "☀ Light";'
    return (
        f":root {{ {light} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{ {dark} }} }}\n"
        f"@media screen {{ :root[data-theme=dark] {{ {dark} }} }}\n"
    )


def curve_panels(contenders: Sequence[Contender]) -> list[Panel]:
    """The plots in which contenders can be switched off."""
    seeds = any(len(c.logs) > 1 for c in contenders)
    band = " Lines are means over the seeds, bands reach from the lowest to the highest." if seeds else ""
    panels = [
        Panel(
            "accuracy", "Accuracy against the clock", f"Higher and further left is better.{band}",
            "Test accuracy against seconds of training. At the end: "
            + each(contenders, lambda c: show_percent(c.standing.accuracy.mean) if c.standing.accuracy else ""),
            accuracy_figure(contenders),
        ),
        Panel(
            "loss", "Loss against bytes sent", f"How much training a byte buys: further left is thriftier.{band}",
            "Training loss against bytes sent by each rank. Sent in a step: "
            + each(contenders, lambda c: show_bytes(c.standing.bytes_per_step) if c.standing.bytes_per_step else ""),
            loss_figure(contenders),
        ),
        Panel(
            "layers", "Layer by layer", "What each layer's gradient was compressed to, and what it lost. "
            "Layers that travel as they are lose nothing and have no point below.",
            "Compression and relative error of every layer. Over all layers: "
            + each(contenders, lambda c: show_times(c.standing.wire_ratio) if c.layers() else ""),
            layers_figure(contenders),
        ),
    ]  # fmt: skip
    return [panel for panel in panels if panel.figure["data"]]


def bar_panels(contenders: Sequence[Contender]) -> list[Panel]:
    speeds = ranked(contenders, lambda s: s.speed_up)
    panels = [
        Panel(
            "speed", "Speed-up over no compression", "The whole training, warm-up included, against "
            "the uncompressed one (the dashed line). Hatched bars lose; empty ones do not count, because the model "
            "learnt less.",
            "Speed-up of the training over uncompressed training: "
            + each(speeds, lambda c: show_times(c.standing.speed_up)),
            speed_figure(contenders),
        ),
        Panel(
            "parts", "Where the step goes", "The backward pass hides part of the work on gradients; shown is what "
            "it does not hide, divided in the proportion of all the work. A colour is a codec, a texture is a part."
            + texture_legend(contenders),
            "Seconds of a step by part: "
            + each(contenders, lambda c: ", ".join(f"{k} {show_seconds(v)}" for k, v in c.where_step_goes().items())),
            parts_figure(contenders),
        ),
    ]  # fmt: skip
    filled = {"speed": bool(speeds), "parts": any(c.where_step_goes() for c in contenders)}
    return [panel for panel in panels if filled[panel.name]]


def texture_legend(contenders: Sequence[Contender]) -> str:
    """The parts of a step that are drawn, without the colour of a codec."""
    drawn = {part for c in contenders for part in c.where_step_goes()}
    keys = [f'<span><i class="{part.replace(" ", "-")}"></i>{PARTS[part][0]}</span>' for part in PARTS if part in drawn]
    return f'<span class="textures">{"".join(keys)}</span>'


def each(contenders: Sequence[Contender], figure: Callable[[Contender], str]) -> str:
    """One figure of everyone who has it, as a sentence."""
    return "; ".join(f"{c.label} {shown}" for c in contenders if (shown := figure(c))) + "."


def plots_html(contenders: Sequence[Contender], curves: Sequence[Panel], bars: Sequence[Panel]) -> str:
    """Accuracy first, because it decides; the chips stay in view above all plots, as their legend."""
    first = [panel for panel in curves if panel.name == "accuracy"]
    both = "\n".join(panel.html() for panel in bars)
    pair = f'<div class="pair">{both}</div>' if len(bars) == 2 else both
    drawn = {trace["meta"] for panel in curves for trace in panel.figure["data"]}
    chips = "".join(chip_html(place, c) for place, c in enumerate(contenders) if place in drawn)
    legend = f'<div class="chips" role="group" aria-label="Show or hide codecs">{chips}</div>' if chips else ""
    rest = [panel.html() for panel in curves if panel not in first]
    return "\n".join(["<div>", legend, *(panel.html() for panel in first), pair, *rest, "</div>"])


def chip_html(place: int, c: Contender) -> str:
    """A switch that is also the legend: the line as it is drawn, and the name."""
    strokes = {"solid": "", "dash": "6 4", "dot": "2 3", "dashdot": "7 3 2 3"}[DASHES[c.look.dash][0]]
    line = f'stroke="var(--{c.look.token})" stroke-width="3" stroke-dasharray="{strokes}"'
    icon = f'<svg width="26" height="12" aria-hidden="true"><line x1="1" y1="6" x2="25" y2="6" {line}/></svg>'
    hint = "Click to hide or show; double-click to show this one alone"
    state = f'aria-pressed="true" data-place="{place}" title="{hint}"'
    return f'<button type="button" {state}>{icon}{escape(c.label)}</button>'


def table_html(contenders: Sequence[Contender]) -> str:
    table = f"<table>{final_table(contenders)}</table>" if contenders else ""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="All figures">{table}</div>' if table else ""


def panel_html(title: str, caption: str, content: str) -> str:
    head = f'<h2>{title}</h2><p class="caption">{caption}</p>'
    return f'<section class="panel">{head}{content}</section>' if content else ""
