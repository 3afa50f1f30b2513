"""The optimizer of outer steps: it takes the mean difference of weights for a gradient."""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from thinwire.core.text import parse_call
from thinwire.errors import CodecError

OuterLike: TypeAlias = str | Callable[[list[Tensor]], torch.optim.Optimizer]

_OPTIONS: dict[str, dict[str, float]] = {
    "sgd": {"lr": 1.0, "momentum": 0.0},
    "nesterov": {"lr": 0.7, "momentum": 0.9},
}


def check_outer(outer: OuterLike) -> None:
    """Refuse what names no outer optimizer."""
    if isinstance(outer, str):
        _read(outer)
    elif not callable(outer):
        raise CodecError(
            f"outer must be a text such as 'nesterov(lr=0.7, momentum=0.9)' or 'sgd(lr=1)', or a function that makes a"
            f" torch.optim.Optimizer of a list of tensors; got {type(outer).__name__}."
        )


def make_outer(outer: OuterLike, anchors: list[Tensor]) -> torch.optim.Optimizer:
    """The optimizer of these tensors."""
    if isinstance(outer, str):
        name, options = _read(outer)
        return torch.optim.SGD(anchors, lr=options["lr"], momentum=options["momentum"], nesterov=name == "nesterov")
    made = outer(anchors)
    if not isinstance(made, torch.optim.Optimizer):
        raise CodecError(f"outer must make a torch.optim.Optimizer; it made a {type(made).__name__}.")
    if isinstance(made, torch.optim.LBFGS):
        raise CodecError("outer cannot be LBFGS, which needs a closure; an outer step has one gradient and no loss.")
    held = [id(p) for group in made.param_groups for p in group["params"]]
    if sorted(held) != sorted(map(id, anchors)):
        raise CodecError(
            f"outer must make an optimizer of all {len(anchors)} tensors it is given, each once; it has {len(held)}."
        )
    return made


def describe(optimizer: torch.optim.Optimizer) -> str:
    """The kind and settings of an optimizer, as the ranks compare them."""
    return f"{type(optimizer).__name__}({', '.join(f'{k}={v!r}' for k, v in sorted(optimizer.defaults.items()))})"


def _read(text: str) -> tuple[str, dict[str, float]]:
    name, given = parse_call(text)
    if name not in _OPTIONS:
        raise CodecError(f"there is no outer optimizer {name!r}; known are {', '.join(_OPTIONS)}, or give a function.")
    known = _OPTIONS[name]
    for option in given:
        if option not in known:
            raise CodecError(f"{name} has no option {option!r}; its options are {', '.join(known)}.")
    options = {**known, **given}
    lr, momentum = options["lr"], options["momentum"]
    if not _is_number(lr) or lr <= 0:
        raise CodecError(f"lr must be a number above 0 in {text!r}; got {lr!r}.")
    if not _is_number(momentum) or not 0.0 <= momentum < 1.0:
        raise CodecError(f"momentum must be from 0 to below 1 in {text!r}; got {momentum!r}.")
    if name == "nesterov" and momentum == 0:
        raise CodecError(f"nesterov needs momentum above 0; got {text!r}; without momentum write sgd(lr={lr:g}).")
    return name, {key: float(value) for key, value in options.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
