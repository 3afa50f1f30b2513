"""Triton kernels for tensors on GPUs, with the bits of the reference. Triton is imported when such a tensor comes.

CUDA builds of torch bring Triton. Without version 3.6 or newer the torch reference works instead, which is said once;
so it is on a device whose answers differ from those of the CPU (`selftest`).
"""

import importlib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from thinwire.kernels.native import FORCED

OLDEST = (3, 6)  # older ones compile an exact division to one that flushes subnormals
ON_CPU = FORCED == "triton" and os.environ.get("TRITON_INTERPRET") == "1"  # Triton's interpreter, for tests


def gpu_for(*tensors: Tensor) -> ModuleType | None:
    """The module `entry` if Triton's kernels can work on these tensors: contiguous, on one GPU; else None."""
    device = tensors[0].device
    if device.type == "cpu":
        if not ON_CPU:
            return None
    elif device.type != "cuda" or FORCED in ("reference", "native"):
        return None
    for tensor in tensors:
        if tensor.device != device or not tensor.is_contiguous():
            return None
    return kernels_of(device)


_TESTING: set[torch.device] = set()


@contextmanager
def untested(device: torch.device) -> Iterator[None]:
    """The kernels of this device are used, to find out whether they are right."""
    _TESTING.add(device)
    try:
        yield
    finally:
        _TESTING.discard(device)


def kernels_of(device: torch.device) -> ModuleType | None:
    """The kernels, if they are there and right on this device."""
    return loaded() if device in _TESTING else _tested(device)


@cache
def _tested(device: torch.device) -> ModuleType | None:
    """The kernels, once their answers on this device are known to be right; warns if they are not there or wrong."""
    kernels = loaded()
    if kernels is None or device.type == "cpu":
        return kernels
    wrong = importlib.import_module("thinwire.kernels.known_answers").wrong_kernels(device)
    if wrong:
        warnings.warn(
            f"thinwire's kernels give wrong bits on {device} ({', '.join(wrong)}); the torch reference is used, which"
            f" is right and slower. Please report what `thinwire selftest --device {device}` prints.",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return kernels


@cache
def loaded() -> ModuleType | None:
    """The kernels, if Triton is there; else None, and a warning."""
    try:
        found = importlib.import_module("triton").__version__
        if tuple(int(part) for part in found.split(".")[:2]) < OLDEST:
            raise ImportError(f"triton {found} is older than {'.'.join(map(str, OLDEST))}")
        return importlib.import_module("thinwire.kernels.gpu.entry")
    except ImportError as reason:
        warnings.warn(
            f"thinwire's GPU kernels are not available ({reason}); the torch reference is used, which gives the same"
            " results more slowly. Install the triton that your torch asks for, 3.6 or newer.",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
