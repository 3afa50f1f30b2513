"""One look for each codec in every plot: colour, dash and marker.

The hues stay apart for people with protan, deutan and tritan vision and have a contrast of at least 3 to 1 with their
background. Colour alone is never the only sign: dash and marker change as well, and with a cycle of other length, so
that two codecs that share a hue differ in both.

A colour means a codec and nothing else. The parts of a step have textures, in the colour of their codec. Apart from
codecs there is one colour, for what went wrong.
"""

from dataclasses import dataclass

HUES = 7
LIGHT = ("#2b3441", "#1f6fe5", "#d9790f", "#089e7f", "#8a1580", "#5a3d00", "#4a24b0", "#e0559b")
DARK = ("#d5dbe4", "#4f9bff", "#f29a38", "#39d9b0", "#ee8fe6", "#ffe39a", "#7a72e8", "#e2475c")

# The names plotly and matplotlib have for the same dash and the same marker.
DASHES = (("solid", "-"), ("dash", "--"), ("dot", ":"), ("dashdot", "-."))
MARKERS = (("circle", "o"), ("square", "s"), ("diamond", "D"), ("triangle-up", "^"), ("x", "X"))

PALE = 0.3  # opacity of a codec's colour where a part of a step is pale

# The parts of a step: (what the legend says, plotly's pattern, matplotlib's hatch, whether the colour is pale).
PARTS = {
    "compute": ("compute", "", "", True),
    "encode": ("encode", "/", "//", False),
    "communicate": ("communicate", "", "", False),
    "decode": ("decode", "\\", "\\\\", False),
    "wait": ("wait", "x", "xx", False),
    "whole step": ("not broken down", ".", "..", True),
}
LIGHT_THEME = {
    "page": "#f5f6f8", "surface": "#ffffff", "stripe": "#f5f6f8", "grid": "#e1e5ea", "text": "#1a1f27",
    "muted": "#5a6472", "bad": "#b3261e",
}  # fmt: skip
DARK_THEME = {
    "page": "#0e1116", "surface": "#171b22", "stripe": "#1c212a", "grid": "#2b323d", "text": "#e8ecf2",
    "muted": "#9aa5b4", "bad": "#ff8078",
}  # fmt: skip


@dataclass(frozen=True)
class Look:
    """How one codec is drawn; `hue` counts into LIGHT and DARK, where 0 is kept for uncompressed training."""

    hue: int
    dash: int
    marker: int

    @property
    def token(self) -> str:
        """The colour's name in the page, which has another value in light and in dark."""
        return f"c{self.hue}"


def looks_for(labels: list[str], plain: str | None = "none") -> dict[str, Look]:
    """A look for every label, in their order; `plain`, the uncompressed training, is the neutral one."""
    looks = {}
    others = [label for label in labels if label != plain]
    for place, label in enumerate(others):
        lap = place // HUES
        looks[label] = Look(1 + place % HUES, lap % len(DASHES), (place + lap) % len(MARKERS))
    return {label: looks.get(label, Look(0, 0, 0)) for label in labels}
