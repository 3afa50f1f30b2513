"""Finds the compiled kernels, once, and says so once when they are missing."""

import importlib
import os
import warnings
from types import ModuleType

import torch
from torch import Tensor

from thinwire.errors import CodecError

CHOICES = ("", "reference", "native", "triton")
# forces one implementation, for tests and people who suspect one; "triton" takes CPU tensors with TRITON_INTERPRET=1
FORCED = os.environ.get("THINWIRE_KERNELS", "")
if FORCED not in CHOICES:
    raise CodecError(f"THINWIRE_KERNELS must be one of {', '.join(CHOICES[1:])}, or not set; got {FORCED!r}.")


def _load() -> ModuleType | None:
    try:
        return importlib.import_module("thinwire._native")
    except ImportError as reason:
        if FORCED == "native":
            raise CodecError(f"THINWIRE_KERNELS=native, but there are no compiled kernels ({reason}).") from reason
        warnings.warn(
            f"thinwire's compiled kernels are not available ({reason}); the torch reference is used, which gives the"
            " same results more slowly. Reinstall thinwire on a machine with a C++17 compiler to get them.",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


NATIVE = _load()
LEAST_SHARED = 1 << 20  # numbers: starting a thread costs some 40 us, which shorter work does not win back


def native_for(*tensors: Tensor) -> ModuleType | None:
    """The compiled kernels if all these tensors are contiguous and on the CPU, else None."""
    if NATIVE is None or FORCED in ("reference", "triton"):
        return None
    for tensor in tensors:
        if not (tensor.is_cpu and tensor.is_contiguous()):
            return None
    return NATIVE


def threads_for(numel: int) -> int:
    """How many threads may work on so many numbers: as many as torch itself would use, one if they are few."""
    return 1 if numel < LEAST_SHARED else torch.get_num_threads()
