"""Finds the compiled kernels, once, and says so once when they are missing."""

import importlib
import warnings
from types import ModuleType

from torch import Tensor


def _load() -> ModuleType | None:
    try:
        return importlib.import_module("thinwire._native")
    except ImportError as reason:
        warnings.warn(
            f"thinwire's compiled kernels are not available ({reason}); the torch reference is used, which gives the"
            " same results more slowly. Reinstall thinwire on a machine with a C++17 compiler to get them.",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


NATIVE = _load()


def native_for(*tensors: Tensor) -> ModuleType | None:
    """The compiled kernels if all these tensors are contiguous and on the CPU, else None."""
    if NATIVE is not None and all(t.device.type == "cpu" and t.is_contiguous() for t in tensors):
        return NATIVE
    return None
