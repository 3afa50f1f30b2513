"""Completion of codec names in shells.

A key press must not wait for torch, so the names stand here; tests compare them with the names that exist.
"""

from collections.abc import Sequence
from importlib.metadata import entry_points

from thinwire._names import OUTER_NAMES

STAGE_NAMES = (
    *("feedback", "delay", "fp32", "fp16", "bf16", "float", "integers", "pca", "qsgd", "nuqsgd", "alq", "ternary"),
    *("sign", "rangefloat", "codebook", "mx", "fft", "dct", "hadamard", "topk", "sharedtopk", "threshold"),
    *("momentum", "ef21", "importance"),
    *("randomk", "powersgd", "ballot", "vote", "elias", "huffman"),
)
PRESET_NAMES = (
    *("qsgdinf", "nuqsgdinf", "onebit", "terngrad", "int8", "fftsgd", "scalecom", "signsgd", "iwp", "dgc"),
    *("demo", "gradiveq"),
)


def complete_codec(incomplete: str) -> list[str]:
    """Chains that begin as `incomplete` does: the name behind the last | is completed."""
    return completed(incomplete, codec_names(), "|")


def codec_names() -> list[str]:
    """What a chain may begin with, names of installed packages included."""
    return ["none", *STAGE_NAMES, *PRESET_NAMES, *OUTER_NAMES, *sorted(entry_points(group="thinwire.stages").names)]


def completed(incomplete: str, names: Sequence[str], separators: str) -> list[str]:
    """What is typed up to its last separator outside of parentheses, and each name that fits behind it."""
    start = depth = 0
    for at, character in enumerate(incomplete):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0 and character in separators:
            start = at + 1
    if depth > 0:  # options of a stage
        return []
    begun = incomplete[start:].lstrip()
    kept = incomplete[: len(incomplete) - len(begun)]
    return [kept + name for name in names if name.startswith(begun)]
