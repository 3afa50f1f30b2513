"""Completion of the names of recipes and baselines in shells, and of lists of codecs.

A key press must not wait for torch, so the names stand here; tests compare them with the names that exist.
"""

from thinwire.cli.completion import codec_names, completed

BASELINE_NAMES = ("ddp", "headroom", "torch-fp16", "torch-bf16", "torch-powersgd")
RECIPE_NAMES = ("fashion-tiny", "fashion-vgg", "fashion-resnet", "fashion-mlp", "text-gpt", "text-tiny")


def complete_codecs(incomplete: str) -> list[str]:
    """Names in a list of codecs, in which PyTorch's hooks can stand too."""
    return completed(incomplete, [*codec_names(), *BASELINE_NAMES], ",;|")


def complete_baseline(incomplete: str) -> list[str]:
    return completed(incomplete, BASELINE_NAMES, ",;")


def complete_recipe(incomplete: str) -> list[str]:
    return [name for name in RECIPE_NAMES if name.startswith(incomplete)]
