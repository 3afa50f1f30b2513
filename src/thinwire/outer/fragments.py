"""Fragments: the parameters in groups of about equal bytes, layer by layer."""

from collections.abc import Sequence
from itertools import groupby

from thinwire.errors import CodecError


def split(parameters: Sequence[tuple[str, int]], parts: int) -> list[list[int]]:
    """Positions of the parameters (name, bytes) in each fragment; no layer is divided unless there are too few.

    They stay in the order of the model, so that a fragment is a run of layers.
    """
    if len(parameters) < parts:
        raise CodecError(
            f"fragments={parts} needs at least so many trained parameters; the model has {len(parameters)}."
        )
    layers = [list(run) for _, run in groupby(range(len(parameters)), lambda at: layer_of(parameters[at][0]))]
    if len(layers) < parts:
        layers = [[at] for at in range(len(parameters))]
    sizes = [sum(parameters[at][1] for at in layer) for layer in layers]
    fragments: list[list[int]] = [[] for _ in range(parts)]
    total, before, part = sum(sizes) or 1, 0, -1
    for at, (layer, size) in enumerate(zip(layers, sizes, strict=True)):
        middle = (before + size / 2) * parts / total  # the fragment in whose range the middle of the layer lies
        wanted = max(part, 0, min(int(middle), part + 1, parts - 1))
        part = max(wanted, parts - (len(layers) - at))  # a layer must be left for every fragment
        fragments[part] += layer
        before += size
    return fragments


def layer_of(name: str) -> str:
    """The layer of a parameter: its name up to the first number, or without its last part."""
    parts = name.split(".")
    numbers = [at for at, part in enumerate(parts[:-1]) if part.isdigit()]
    return ".".join(parts[: numbers[0] + 1] if numbers else parts[:-1])
