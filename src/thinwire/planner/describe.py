"""Profiles of what is only described: a number of parameters or shapes, hosts, a link, a time of backward."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from thinwire.core.checks import expect_mapping, expect_shape
from thinwire.errors import CodecError, StateError
from thinwire.planner.candidates import checked_candidates
from thinwire.planner.figures import codec_figures
from thinwire.planner.measure import core_count
from thinwire.planner.profile import DEFAULT_BUCKETS, Layer, Link, Machine, Model, Profile, bucketed

_RATE = {"k": 1e3, "m": 1e6, "g": 1e9}
_COUNT = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_SIDE = 1024  # rows and columns of the matrices of a model of which only the number of parameters is known
TYPES = ("float32", "bfloat16", "float16", "float64")
FORWARD = 0.5  # of the time of backward


def parse_rate(text: str) -> float:
    """Bits per second of `100mbit` or `2.5gbit`."""
    return _parsed(text, r"(\d+(?:\.\d+)?)(k|m|g)bit", _RATE, "a link rate", "200mbit or 1gbit")


def parse_seconds(text: str) -> float:
    """Seconds of `20ms`, `250us` or `1.5s`."""
    return _parsed(text, r"(\d+(?:\.\d+)?)(us|ms|s)", _SECONDS, "a time", "20ms or 1.5s")


def parse_count(text: str) -> int:
    """The number in `125M`, `1.3B` or `5600000`."""
    return max(1, round(_parsed(text, r"(\d+(?:\.\d+)?)(k|m|b|)", _COUNT, "a number of parameters", "125M or 1.3B")))


def _parsed(text: str, form: str, units: Mapping[str, float], what: str, example: str) -> float:
    match = re.fullmatch(form, text.strip(), re.IGNORECASE)
    if match is None:
        raise CodecError(f"{what} is written {example}; got {text!r}.")
    return float(match[1]) * units[match[2].lower()]


def shapes_of(parameters: int) -> dict[str, tuple[int, ...]]:
    """Square matrices with so many parameters in all, and a vector for the rest."""
    side = min(_SIDE, max(8, int((parameters / 4) ** 0.5)))
    count, rest = divmod(parameters, side * side)
    shapes: dict[str, tuple[int, ...]] = {f"layer{i}.weight": (side, side) for i in range(count)}
    return shapes | ({"rest.bias": (rest,)} if rest else {})


def read_shapes(path: str | Path) -> dict[str, tuple[int, ...]]:
    """A JSON file of parameter names and shapes, as `{name: list(p.shape) for name, p in named_parameters()}`."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as reason:
        raise StateError(f"{Path(path).name} is no JSON file of shapes: {reason}.") from reason
    shapes = {name: expect_shape(f"the shape of {name}", s) for name, s in expect_mapping("it", content).items()}
    if not shapes:
        raise StateError(f"{Path(path).name} names no parameter.")
    return shapes


def described_model(
    shapes: Mapping[str, Sequence[int]], backward: float, step: float | None = None, dtype: str = "float32"
) -> Model:
    """A model whose gradients come at a steady pace, the last layer's first.

    Args:
        shapes: Parameters by name, in the order of the forward pass.
        backward: Seconds of a backward pass.
        step: Seconds of a step without communication; None adds half of backward for the forward pass.
        dtype: Type of the numbers of its gradients.
    """
    if dtype not in TYPES:
        raise CodecError(f"the type of gradients is one of {', '.join(TYPES)}; got {dtype!r}.")
    step = (1 + FORWARD) * backward if step is None else step
    if not 0 < backward <= step:
        raise CodecError(
            f"backward must take more than no time and no more than the step; got {backward} and {step} s."
        )
    ordered = [Layer(name, tuple(shape), 0, dtype) for name, shape in reversed(list(shapes.items()))]
    layers = bucketed(ordered, DEFAULT_BUCKETS)
    return Model(layers, paced(layers, step - backward, step), step)


def paced(layers: Sequence[Layer], begin: float, end: float) -> tuple[float, ...]:
    """When each bucket is ready, if gradients come at a steady pace between two moments."""
    numel = sum(layer.numel for layer in layers) or 1
    ready, done = dict[int, float](), 0
    for layer in layers:
        done += layer.numel
        ready[layer.bucket] = begin + (end - begin) * done / numel
    return tuple(ready[bucket] for bucket in sorted(ready))


def rebucketed(model: Model, megabytes: float) -> Model:
    """The same model in buckets of another size, as with `bucket_cap_mb`; within a bucket gradients come at a steady
    pace."""
    moments, layers = dict[str, float](), list[Layer]()
    begin = 0.0
    for bucket, end in enumerate(model.ready):
        members = [layer for layer in model.layers if layer.bucket == bucket]
        start = begin if bucket else end - (end - begin) / max(len(model.ready), 1)
        numel, done = sum(layer.numel for layer in members) or 1, 0
        for layer in members:
            done += layer.numel
            moments[layer.name] = start + (end - start) * done / numel
        layers, begin = [*layers, *members], end
    placed = bucketed(layers, [int(megabytes * 2**20)])
    ready = dict[int, float]()
    for layer in placed:
        ready[layer.bucket] = max(ready.get(layer.bucket, 0.0), moments[layer.name])
    return Model(placed, tuple(ready[bucket] for bucket in sorted(ready)), model.step)


def described_profile(
    model: Model, link: Link, candidates: Sequence[str] | None = None, per_host: int = 1, device: str = "cpu"
) -> Profile:
    """A profile of a described model on a described link; codecs are timed on this machine, on made-up gradients.

    Args:
        model: The model.
        link: The link.
        candidates: Codecs; None takes `candidates.CANDIDATES`.
        per_host: Ranks on a host.
        device: Type of the device that trains.
    """
    figures = {
        codec: codec_figures(codec, model.layers, {}, min(link.ranks, 8)) for codec in checked_candidates(candidates)
    }
    cores = max(core_count(), per_host)
    return Profile(link, Machine(cores, per_host, 1, device), model, figures, link.ranks, 0)


def on_link(profile: Profile, link: Link) -> Profile:
    """The same model and codecs on another link."""
    return replace(profile, link=link, ranks=link.ranks)
