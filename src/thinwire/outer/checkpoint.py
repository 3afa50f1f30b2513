"""The part of a checkpoint that outer steps need beside the state of the engine; equal on all ranks.

    {"settings": text, "shard": text, "step": n, "anchors": {name: tensor}, "buffers": {name: tensor},
     "optimizer": its state_dict, "flights": [{"fragment": f, "due": n, "means": [...], "buffers": {name: tensor}}]}

Exchanges under way are waited for, and their results are stored. They are applied at the step at which they are due.
"""

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thinwire.core.checks import expect_count, expect_keys, expect_mapping, expect_number, expect_tensor, expect_text
from thinwire.errors import StateError
from thinwire.outer.exchange import Exchange, Flight
from thinwire.outer.optimizers import describe
from thinwire.outer.weights import checksum

_KEYS = ("settings", "shard", "step", "anchors", "buffers", "optimizer", "flights")
_FLOATS = (torch.float32, torch.float64)


def settings_text(exchange: Exchange) -> str:
    """What must be equal in the run that wrote a checkpoint and in the run that loads it."""
    facts = {
        **exchange.settings.facts(),
        "outer": describe(exchange.anchors.optimizer),
        "buffers": exchange.buffers.how,
    }
    return ", ".join(f"{name}={value}" for name, value in facts.items())


def weights_key(rank: int) -> str:
    """Where the checksum of a rank's own weights is; like all keys of a rank, `full_state_dict` keeps it."""
    return f"rank{rank}.weights"


def warn_other_weights(saved: Mapping[str, Any], rank: int, ranks: int, weights: list[Tensor]) -> None:
    """Between rounds each rank has weights of its own, and a resumed run needs them."""
    written = saved.get(weights_key(rank))
    if saved["world_size"] != ranks or written in (None, checksum(weights)):
        return
    warnings.warn(
        f"rank {rank}: the weights of this rank are not those with which its checkpoint was written, so that training"
        " does not go on bit for bit. Attach, then load the model and the optimizer that this rank has saved, then the"
        " handle. Where one rank saves the model for all, save it after handle.synchronize().",
        RuntimeWarning,
        stacklevel=5,
    )


def save_outer(exchange: Exchange) -> dict[str, Any]:
    """All of it, in memory of its own."""
    exchange.wait()
    anchors, buffers = exchange.anchors, exchange.buffers
    flights = [
        {
            "fragment": flight.fragment,
            "due": flight.due,
            "means": [mean.clone() for mean in flight.means],
            "buffers": {buffers.names[at]: value.clone() for at, value in flight.buffers.items()},
        }
        for flight in exchange.flights
    ]
    return {
        "settings": settings_text(exchange),
        "shard": exchange.anchors.shard,
        "step": exchange.step,
        "anchors": {name: value.clone() for name, value in zip(anchors.names, anchors.values, strict=True)},
        "buffers": {name: value.clone() for name, value in zip(buffers.names, buffers.known, strict=True)},
        "optimizer": copy.deepcopy(anchors.optimizer.state_dict()),
        "flights": flights,
    }


@dataclass
class LoadedOuter:
    """A saved state that fits this exchange."""

    step: int
    anchors: list[Tensor]
    buffers: list[Tensor]
    optimizer: dict[str, Any]
    flights: list[Flight]

    def facts(self) -> dict[str, Any]:
        """What must be equal on all ranks."""
        means = [mean for flight in self.flights for mean in flight.means]
        return {
            "the inner step in their checkpoints": self.step,
            "the exchanges under way in their checkpoints": [(f.fragment, f.due) for f in self.flights],
            "the agreed weights in their checkpoints": checksum([*self.anchors, *means]),
        }

    def apply(self, exchange: Exchange) -> None:
        """Go on from it."""
        exchange.step, exchange.flights = self.step, self.flights
        for mine, value in zip(exchange.anchors.values, self.anchors, strict=True):
            mine.copy_(value)
        for mine, value in zip(exchange.buffers.known, self.buffers, strict=True):
            mine.copy_(value)
        exchange.anchors.optimizer.load_state_dict(self.optimizer)


def checked_outer(exchange: Exchange, saved: Mapping[str, Any]) -> LoadedOuter:
    """What a checkpoint says about outer steps, if it belongs to this run; a StateError otherwise."""
    if "outer" not in expect_mapping("it", saved):
        raise StateError("this is not a checkpoint of attach_outer: it has no 'outer'; attach() writes others.")
    outer = expect_mapping("'outer' in this checkpoint", saved["outer"])
    expect_keys("'outer' in this checkpoint", outer, _KEYS)
    written, here = expect_text("'settings' in this checkpoint", outer["settings"]), settings_text(exchange)
    if written != here:
        raise StateError(
            f"this checkpoint was written with {written}, and this run has {here}; attach with the former."
        )
    anchors, buffers = exchange.anchors, exchange.buffers
    shard = expect_text("'shard' in this checkpoint", outer["shard"])
    if shard != anchors.shard:
        raise StateError(
            f"this checkpoint is of the {shard or 'whole weights'}, and this rank has the {anchors.shard or 'whole'};"
            " save handle.state_dict() on every rank, and load on each what it saved."
        )
    stored = expect_mapping("'anchors'", outer["anchors"])
    expect_keys("'anchors' in this checkpoint", stored, anchors.names)
    values = [_like(name, stored[name], value) for name, value in zip(anchors.names, anchors.values, strict=True)]
    stored = expect_mapping("'buffers'", outer["buffers"])
    expect_keys("'buffers' in this checkpoint", stored, buffers.names)
    known = [_like(name, stored[name], value) for name, value in zip(buffers.names, buffers.known, strict=True)]
    step = expect_count("'step' of the outer part", outer["step"])
    if not isinstance(outer["flights"], (list, tuple)):
        raise StateError("'flights' in this checkpoint must be a list.")
    flights = [_flight(exchange, step, each) for each in outer["flights"]]
    if len({f.fragment for f in flights}) < len(flights) or flights != sorted(flights, key=lambda f: f.due):
        raise StateError("'flights' in this checkpoint must be of different fragments, in the order in which they end.")
    return LoadedOuter(step, values, known, _optimizer(exchange, outer["optimizer"]), flights)


def _flight(exchange: Exchange, step: int, saved: Any) -> Flight:
    saved = expect_mapping("an exchange under way", saved)
    expect_keys("an exchange under way", saved, ("fragment", "due", "means", "buffers"))
    fragment = expect_count("'fragment'", saved["fragment"], 0, len(exchange.fragments) - 1)
    due = expect_count("'due'", saved["due"], step, step + exchange.settings.overlap)
    which, means = exchange.fragments[fragment], saved["means"]
    if not isinstance(means, (list, tuple)) or len(means) != len(which):
        raise StateError(f"an exchange under way of fragment {fragment} must have {len(which)} means.")
    anchors, buffers = exchange.anchors, exchange.buffers
    loaded = [_like(anchors.names[at], mean, anchors.values[at]) for at, mean in zip(which, means, strict=True)]
    places = {name: at for at, name in enumerate(buffers.names)}
    stored = expect_mapping("'buffers' of an exchange under way", saved["buffers"])
    expect_keys("'buffers' of an exchange under way", stored, (), buffers.names)
    return Flight(
        fragment,
        due,
        loaded,
        buffers={places[name]: _like(name, value, buffers.values[places[name]]) for name, value in stored.items()},
    )


def _optimizer(exchange: Exchange, saved: Any) -> dict[str, Any]:
    """The state of an outer optimizer whose tensors have the shapes of the anchors and are finite."""
    state = dict(expect_mapping("'optimizer' in this checkpoint", saved))
    expect_keys("'optimizer' in this checkpoint", state, ("state", "param_groups"))
    optimizer = exchange.anchors.optimizer
    _check_groups(state["param_groups"], optimizer.state_dict()["param_groups"])
    order = [p for group in optimizer.param_groups for p in group["params"]]
    entries = state["state"]
    if not isinstance(entries, Mapping):
        raise StateError("'state' of the outer optimizer in this checkpoint must be a mapping.")
    for index, values in entries.items():
        if not isinstance(index, int) or not 0 <= index < len(order):
            raise StateError(f"the outer optimizer in this checkpoint has state of a parameter {index!r}.")
        for key, value in expect_mapping("the state of the outer optimizer", values).items():
            if isinstance(value, Tensor) and value.dim():
                # only those of torch's own are known to be like their parameter
                alike = type(optimizer).__module__.startswith("torch.optim") and "_row" not in key and "_col" not in key
                shape = order[index].shape if alike else value.shape
                expect_tensor(f"{key!r} of the outer optimizer", value, shape, _FLOATS)
    return copy.deepcopy(state)


def _check_groups(saved: Any, mine: list[dict[str, Any]]) -> None:
    """Settings of an outer optimizer: numbers where this one has numbers, of the same parameters."""
    if not isinstance(saved, list) or len(saved) != len(mine) or not all(isinstance(g, dict) for g in saved):
        raise StateError(f"the outer optimizer in this checkpoint must have a list of {len(mine)} groups.")
    for theirs, ours in zip(saved, mine, strict=True):
        expect_keys("a group of the outer optimizer", theirs, tuple(ours))
        if theirs["params"] != ours["params"]:
            raise StateError("the outer optimizer in this checkpoint is of other parameters.")
        for key, value in ours.items():
            if isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool)):
                expect_number(f"{key!r} of the outer optimizer", theirs[key])
            elif isinstance(value, bool) and not isinstance(theirs[key], bool):
                raise StateError(f"{key!r} of the outer optimizer must be true or false; got {theirs[key]!r}.")


def _like(name: str, value: Any, mine: Tensor) -> Tensor:
    """A copy of a saved tensor that can take the place of one of this run."""
    if mine.is_floating_point():
        value = expect_tensor(f"the saved {name}", value, mine.shape, (mine.dtype,))
    elif not isinstance(value, Tensor) or value.shape != mine.shape or value.dtype != mine.dtype:
        raise StateError(f"the saved {name} must be a tensor of {mine.dtype} and shape {tuple(mine.shape)}.")
    copied: Tensor = value.detach().to(mine.device, copy=True)
    return copied
