"""The page of an advice: speed-up against the rate of the link with break-even points, and growth with the ranks."""

import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thinwire.planner.advice import GROWTH, RATES, Advice, break_even, speedups
from thinwire.planner.choice import Choice
from thinwire.planner.predict import predict
from thinwire_lab.report.extras import drawing_library
from thinwire_lab.report.palette import LIGHT
from thinwire_lab.report.plots import STYLE

_MOST = 7  # codecs in a plot

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>thinwire: will it pay?</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
pre {{ overflow-x: auto; background: #f4f4f6; padding: 1rem; font-size: 13px }}
svg {{ max-width: 100%; height: auto }}</style>
<h1>Will compression pay?</h1>
<p><b>{verdict}</b></p>
<pre>{text}</pre>
<h2>Speed-up against the rate of the link</h2>
{rates}
<p>Predicted from the figures of this model and machine, for {ranks} ranks. {even}</p>
<h2>Growth with the number of ranks</h2>
{growth}
<p>A prediction: nothing was run on more than {ranks} ranks.</p>
</html>
"""


def write_page(advice: Advice, path: Path) -> None:
    """Write one self-contained page."""
    shown = [choice for choice in (*advice.choices.admitted, *advice.choices.refused) if len(choice.plan.rules) == 1]
    shown = shown[:_MOST]
    gains = {choice.codec: speedups(advice.profile, choice.codec) for choice in shown}
    points = {codec: break_even(RATES, values) for codec, values in gains.items()}
    told = [f"{codec} pays up to {_rate(point)}" for codec, point in points.items() if point is not None]
    page = PAGE.format(
        verdict=html.escape(advice.verdict),
        text=html.escape(str(advice)),
        rates=_drawn(lambda axes: draw_rates(axes, gains, points)),
        even=html.escape("; ".join(told) + "." if told else "No codec has a break-even point between these rates."),
        growth=_drawn(lambda axes: draw_growth(axes, advice, shown)),
        ranks=advice.profile.ranks,
    )
    path.write_text(page, encoding="utf-8")


def draw_rates(axes: Any, gains: dict[str, list[float]], points: dict[str, float | None]) -> None:
    for at, (codec, values) in enumerate(gains.items()):
        colour = LIGHT[at % len(LIGHT)]
        axes.plot([rate / 1e6 for rate in RATES], values, label=codec, color=colour, linewidth=1.4)
        if (point := points[codec]) is not None:
            axes.plot([point / 1e6], [1.0], marker="o", color=colour, markersize=5)
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set(xscale="log", yscale="log", xlabel="Mbit/s of each link", ylabel="Speed-up over plain DDP")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def draw_growth(axes: Any, advice: Advice, shown: Sequence[Choice]) -> None:
    for at, codec in enumerate(["none", *(choice.codec for choice in shown)]):
        steps = [1e3 * predict(advice.profile, codec, ranks).step for ranks in GROWTH]
        colour = "black" if codec == "none" else LIGHT[(at - 1) % len(LIGHT)]
        axes.plot(GROWTH, steps, label=codec, color=colour, linewidth=1.4)
    axes.set(xscale="log", yscale="log", xlabel="Ranks (predicted)", ylabel="Step, ms")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _drawn(draw: Any) -> str:
    """A plot as SVG text."""
    matplotlib = drawing_library("matplotlib")
    figure = drawing_library("matplotlib.figure").Figure(figsize=(8.4, 3.8), layout="constrained")
    with matplotlib.rc_context(STYLE):
        draw(figure.subplots())
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    return text[text.index("<svg") :]


def _rate(bits: float) -> str:
    return f"{bits / 1e9:.1f} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.0f} Mbit/s"
