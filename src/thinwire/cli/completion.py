"""Completion of codec and recipe names in shells.

A key press must not wait for torch, so the names stand here; tests compare them with the names that exist.
"""

from collections.abc import Sequence

STAGE_NAMES = (
    *("feedback", "delay", "fp32", "fp16", "bf16", "integers", "pca", "qsgd", "nuqsgd", "alq", "ternary", "sign"),
    *("rangefloat", "fft", "dct", "hadamard", "topk", "sharedtopk", "threshold", "momentum", "importance"),
    *("randomk", "powersgd", "ballot", "vote", "elias", "huffman"),
)
PRESET_NAMES = (
    *("qsgdinf", "nuqsgdinf", "onebit", "terngrad", "int8", "fftsgd", "scalecom", "signsgd", "iwp", "dgc"),
    "gradiveq",
)
BASELINE_NAMES = ("ddp", "headroom", "torch-fp16", "torch-bf16", "torch-powersgd")
RECIPE_NAMES = ("fashion-tiny", "fashion-vgg", "fashion-resnet", "fashion-mlp", "text-gpt", "text-tiny")


def complete_codec(incomplete: str) -> list[str]:
    """Chains that begin as `incomplete` does: the name behind the last | is completed."""
    return _completed(incomplete, _codec_names(), "|")


def complete_codecs(incomplete: str) -> list[str]:
    """The same for lists of codecs, in which PyTorch's hooks can stand too."""
    return _completed(incomplete, [*_codec_names(), *BASELINE_NAMES], ",;|")


def complete_baseline(incomplete: str) -> list[str]:
    return _completed(incomplete, BASELINE_NAMES, ",;")


def complete_recipe(incomplete: str) -> list[str]:
    return [name for name in RECIPE_NAMES if name.startswith(incomplete)]


def _codec_names() -> list[str]:
    from importlib.metadata import entry_points  # slow to import, and needed for a completion alone

    return ["none", *STAGE_NAMES, *PRESET_NAMES, *sorted(entry_points(group="thinwire.stages").names)]


def _completed(incomplete: str, names: Sequence[str], separators: str) -> list[str]:
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
