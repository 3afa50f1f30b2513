"""One look for each codec in every plot: colour, dash and marker.

The hues stay apart for people with protan, deutan and tritan vision and have a contrast of at least 3 to 1 with their
background. Colour alone is never the only sign: dash and marker change as well, and with a cycle of other length, so
that two codecs that share a hue differ in both.
"""

from dataclasses import dataclass

BASELINE = "none"
HUES = 7
LIGHT = ("#55606e", "#1f6fe5", "#d9790f", "#089e7f", "#8a1580", "#5a3d00", "#4a24b0", "#b8213f")
DARK = ("#8a96a6", "#4f9bff", "#f29a38", "#39d9b0", "#ee8fe6", "#ffe39a", "#7a72e8", "#e2475c")

# The names plotly and matplotlib have for the same dash and the same marker.
DASHES = (("solid", "-"), ("dash", "--"), ("dot", ":"), ("dashdot", "-."))
MARKERS = (("circle", "o"), ("square", "s"), ("diamond", "D"), ("triangle-up", "^"), ("x", "X"))

# The parts of a step: (what the legend says, colour in the themes below, plotly's pattern, matplotlib's hatch).
PARTS = {
    "compute": ("compute", "part-compute", "", ""),
    "encode": ("encode", "part-encode", "/", "//"),
    "communicate": ("communicate", "part-communicate", "", ""),
    "decode": ("decode", "part-decode", "\\", "\\\\"),
    "wait": ("wait", "part-communicate", "x", "xx"),
    "whole step": ("not broken down", "part-unknown", ".", ".."),
}
LIGHT_THEME = {
    "page": "#f5f6f8", "surface": "#ffffff", "stripe": "#f5f6f8", "grid": "#e1e5ea", "text": "#1a1f27",
    "muted": "#5a6472",
    "good": "#0a7a54", "bad": "#b3261e", "accent": "#1f6fe5", "part-compute": "#9aa5b4", "part-encode": "#d9790f",
    "part-communicate": "#1f6fe5", "part-decode": "#089e7f", "part-unknown": "#c3cad4",
}  # fmt: skip
DARK_THEME = {
    "page": "#0e1116", "surface": "#171b22", "stripe": "#1c212a", "grid": "#2b323d", "text": "#e8ecf2",
    "muted": "#9aa5b4",
    "good": "#3fd19b", "bad": "#ff8078", "accent": "#4f9bff", "part-compute": "#6b7686", "part-encode": "#f29a38",
    "part-communicate": "#4f9bff", "part-decode": "#39d9b0", "part-unknown": "#4a5462",
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


def looks_for(labels: list[str]) -> dict[str, Look]:
    """A look for every label, in their order; uncompressed training is always the neutral one."""
    looks = {}
    others = [label for label in labels if label != BASELINE]
    for place, label in enumerate(others):
        lap = place // HUES
        looks[label] = Look(1 + place % HUES, lap % len(DASHES), (place + lap) % len(MARKERS))
    return {label: looks.get(label, Look(0, 0, 0)) for label in labels}
