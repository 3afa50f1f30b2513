"""Checks of what comes from a checkpoint: each returns the value, or raises a StateError that names it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from thinwire.core.inputs import check_dense
from thinwire.errors import StateError
from thinwire.kernels.shares import all_finite

_MOST = 2**62  # no count comes so far, and it can still be computed with
_UNIT = 1e-2  # what rounding may do to the length of a vector is far less


def expect_count(what: str, value: Any, low: int = 0, high: int = _MOST) -> int:
    """A whole number from `low` to `high`."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise StateError(f"{what} must be a whole number of at least {low} and at most {high}; got {_shown(value)}.")
    return value


def expect_number(what: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    """A finite number from `low` to `high`."""
    exact = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MOST
    if not (exact or (isinstance(value, float) and math.isfinite(value))) or not low <= value <= high:
        raise StateError(f"{what} must be a finite number from {low:g} to {high:g}; got {_shown(value)}.")
    return float(value)


def expect_text(what: str, value: Any) -> str:
    if not isinstance(value, str):
        raise StateError(f"{what} must be a text; got {_shown(value)}.")
    return value


def expect_shape(what: str, value: Any) -> tuple[int, ...]:
    """A list of extents."""
    if not isinstance(value, (list, tuple)):
        raise StateError(f"{what} must be a list of whole numbers; got {_shown(value)}.")
    return tuple(expect_count(f"each number in {what}", extent) for extent in value)


def expect_mapping(what: str, value: Any) -> Mapping[str, Any]:
    """A mapping whose keys are texts."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise StateError(f"{what} must be a mapping with texts as its keys; got {_shown(value)}.")
    return value


def expect_tensor(
    what: str, value: Any, shape: Sequence[int] | None = None, dtypes: Sequence[torch.dtype] = (torch.float32,)
) -> Tensor:
    """A dense tensor of finite numbers of this shape and one of these types; without a shape, any flat one."""
    check_dense(what, value, StateError)
    if value.dtype not in dtypes or (value.dim() != 1 if shape is None else value.shape != tuple(shape)):
        kinds = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        form = "flat" if shape is None else f"of shape {tuple(shape)}"
        raise StateError(f"{what} must be a {kinds} tensor {form}; got {_shown(value)}.")
    if not all_finite(value):
        raise StateError(f"{what} must be finite; got a tensor with infinite numbers or NaN.")
    plain: Tensor = value.detach()
    return plain


def expect_unit(what: str, value: Tensor, dim: int) -> None:
    """Vectors of length 1 along this dimension."""
    lengths = torch.linalg.vector_norm(value, dim=dim, dtype=torch.float64)
    if bool(((lengths - 1).abs() > _UNIT).any()):
        raise StateError(f"{what} must consist of vectors of length 1; got lengths up to {float(lengths.max()):g}.")


def expect_keys(what: str, value: Mapping[str, Any], needed: Sequence[str], others: Sequence[str] = ()) -> None:
    """All of the needed keys, and none but these and the others."""
    for key in needed:
        if key not in value:
            raise StateError(f"{what} must have {key!r}; got {', '.join(value) or 'nothing'}.")
    for key in value:
        if key not in needed and key not in others:
            raise StateError(f"{what} has no {key!r}; it has {', '.join((*needed, *others)) or 'nothing'}.")


def _shown(value: Any) -> str:
    """A value in a message, in a few words."""
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype} and shape {tuple(value.shape)}"
    if isinstance(value, str):
        return repr(value[:60])
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    return repr(value) if value is None or isinstance(value, (bool, int, float)) else f"a {type(value).__name__}"
