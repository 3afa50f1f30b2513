"""Profiles from files, checked before they are used."""

import json
import math
from pathlib import Path
from typing import Any

from thinwire.core.checks import (
    expect_count,
    expect_keys,
    expect_mapping,
    expect_number,
    expect_shape,
    expect_text,
)
from thinwire.errors import StateError
from thinwire.planner.profile import (
    LINK_KINDS,
    VERSION,
    Figures,
    Layer,
    Link,
    LinkPoint,
    Machine,
    Model,
    Profile,
)


def load_profile(path: str | Path) -> Profile:
    """The profile that `Profile.save` wrote."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as reason:
        raise StateError(f"{Path(path).name} is not a profile: {reason}.") from reason
    return read_profile(content)


def read_profile(content: Any) -> Profile:
    """A profile from what `Profile.to_dict` gave; what is missing, strange or damaged is a StateError."""
    try:
        return _profile(content)
    except StateError as reason:
        raise StateError(f"this is not a profile: {reason}") from reason


def _profile(content: Any) -> Profile:
    names = ("link", "machine", "model", "codecs", "ranks", "steps_measured")
    expect_keys("it", expect_mapping("it", content), ("thinwire_profile", *names))
    expect_count("thinwire_profile", content["thinwire_profile"], VERSION, VERSION)
    codecs = {
        codec: {
            layer: _figures(f"{codec} of {layer}", found)
            for layer, found in expect_mapping(f"codecs of {codec}", layers).items()
        }
        for codec, layers in expect_mapping("codecs", content["codecs"]).items()
    }
    ranks, steps = expect_count("ranks", content["ranks"], 1), expect_count("steps_measured", content["steps_measured"])
    return Profile(_link(content["link"]), _machine(content["machine"]), _model(content["model"]), codecs, ranks, steps)


def _figures(what: str, content: Any) -> Figures:
    unknown = isinstance(content, dict) and "error" in content and content["error"] is None
    numbers = _numbers(what, {**content, "error": 0.0} if unknown else content, tuple(Figures.__dataclass_fields__))
    return Figures(**{**numbers, "error": math.inf} if unknown else numbers)


def _numbers(what: str, content: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Finite numbers; those of bytes are whole."""
    expect_keys(what, expect_mapping(what, content), names)
    whole = ("sent", "memory")
    return {
        key: expect_count(f"{key} of {what}", value) if key in whole else expect_number(f"{key} of {what}", value)
        for key, value in content.items()
    }


def _list(what: str, value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise StateError(f"{what} must be a list; got a {type(value).__name__}.")
    return list(value)


def _link(content: Any) -> Link:
    expect_keys("link", expect_mapping("link", content), ("ranks", "points", "received_mbit", "hop_seconds"))
    points = expect_mapping("points", content["points"])
    expect_keys("points", points, LINK_KINDS)
    fields = tuple(LinkPoint.__dataclass_fields__)
    read = {
        kind: tuple(LinkPoint(**_numbers(f"a point of {kind}", point, fields)) for point in _list(kind, those))
        for kind, those in points.items()
    }
    for kind, those in read.items():
        sizes = [point.sent for point in those]
        if not those or sizes != sorted(set(sizes)):
            raise StateError(f"the points of {kind} must have sizes that grow; got {sizes}.")
    rates = tuple(expect_number("each of received_mbit", rate, 0) for rate in _list("rates", content["received_mbit"]))
    hop = expect_number("hop_seconds", content["hop_seconds"], 0)
    return Link(expect_count("ranks of the link", content["ranks"], 1), read, rates, hop)


def _machine(content: Any) -> Machine:
    expect_keys("machine", expect_mapping("machine", content), tuple(Machine.__dataclass_fields__))
    counts = {name: expect_count(name, content[name], 1) for name in ("cores", "local_ranks", "threads")}
    return Machine(**counts, device=expect_text("device", content["device"]))


def _model(content: Any) -> Model:
    expect_keys("model", expect_mapping("model", content), ("layers", "ready", "step"))
    layers = []
    for each in _list("layers", content["layers"]):
        expect_keys("a layer", expect_mapping("a layer", each), tuple(Layer.__dataclass_fields__))
        shape = expect_shape("shape", each["shape"])
        bucket, dtype = expect_count("bucket", each["bucket"]), expect_text("dtype", each["dtype"])
        layers.append(Layer(expect_text("name", each["name"]), shape, bucket, dtype))
    ready = tuple(expect_number("each of ready", at, 0) for at in _list("ready", content["ready"]))
    step = expect_number("step", content["step"], 0)
    buckets = sorted({layer.bucket for layer in layers})
    if buckets != list(range(len(ready))):
        raise StateError(f"the layers must be in the buckets 0 to {len(ready) - 1}; got {buckets}.")
    return Model(tuple(layers), ready, step)
