"""The table of names that chains may use, below everything else: it imports nothing."""

from collections.abc import Callable
from typing import Any

# Name -> stage class or preset function. `thinwire.stages` and `thinwire.presets` fill it in.
NAMES: dict[str, Any] = {}

# Presets of outer steps: no codecs, but what people look for where codecs are.
OUTER_NAMES = ("localsgd", "diloco", "sparseloco", "streaming-diloco")

# What loads those modules when a name is first looked up; thinwire itself enters it. Torch takes seconds to import.
LOADERS: list[Callable[[], object]] = []


def load_names() -> None:
    """Let all names of thinwire be entered."""
    for load in LOADERS:
        load()
