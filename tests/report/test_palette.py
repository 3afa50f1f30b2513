"""Everyone can tell the codecs apart."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from thinwire_lab.report.palette import DARK, DARK_THEME, LIGHT, LIGHT_THEME, looks_for

Array = NDArray[np.float64]

# Linear RGB as seen with full protan, deutan and tritan deficiency (Machado et al. 2009).
SEEN_AS = {
    "all": np.eye(3),
    "protan": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "deutan": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "tritan": np.array([[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]),
}
THEMES = [(LIGHT, LIGHT_THEME), (DARK, DARK_THEME)]


def linear(colour: str) -> Array:
    c = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(one: str, two: str) -> float:
    """The ratio of the Web Content Accessibility Guidelines."""
    low, high = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, two))
    return (high + 0.05) / (low + 0.05)


def perceived(rgb: Array) -> Array:
    """Oklab, in which distance is about difference."""
    cones = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]])
    lab = np.array([[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]])
    return np.asarray(lab @ np.cbrt(cones @ np.clip(rgb, 0, 1)))


@pytest.mark.parametrize(("hues", "theme"), THEMES)
def test_everything_stands_out_from_its_background(hues: tuple[str, ...], theme: dict[str, str]) -> None:
    assert min(contrast(hue, theme["surface"]) for hue in hues) >= 3
    for text in ("text", "muted", "bad"):
        assert min(contrast(theme[text], theme[ground]) for ground in ("surface", "page")) >= 4.5, text


@pytest.mark.parametrize("eyes", SEEN_AS)
@pytest.mark.parametrize("hues", [LIGHT, DARK])
def test_hues_differ_for_all_eyes(hues: tuple[str, ...], eyes: str) -> None:
    seen = [perceived(SEEN_AS[eyes] @ linear(hue)) for hue in hues]
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2)) > 0.035


@pytest.mark.parametrize(("hues", "theme"), THEMES)
def test_a_codec_shares_its_colour_with_nothing_else(hues: tuple[str, ...], theme: dict[str, str]) -> None:
    for name, colour in theme.items():
        nearest = min(float(np.linalg.norm(perceived(linear(colour)) - perceived(linear(hue)))) for hue in hues)
        assert nearest > 0.05, name


@given(st.lists(st.text(max_size=5), max_size=28, unique=True))
def test_every_contender_has_a_look_of_its_own(labels: list[str]) -> None:
    looks = looks_for([*labels, "none"] if "none" not in labels else labels, "none")
    assert len(set(looks.values())) == len(looks)
    assert [label for label, look in looks.items() if look.hue == 0] == ["none"]
