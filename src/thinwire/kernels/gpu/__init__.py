"""Triton kernels for tensors on GPUs, with the bits of the reference. Triton is imported when such a tensor comes.

CUDA builds of torch bring Triton. Without version 3.6 or newer the torch reference works instead, which is said once.
So it does for each family of kernels whose answers on a device differ from those of the CPU: before its first use there
a family must give known answers, and one that is wrong leaves the others as they are.
"""

import importlib
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch
from torch import Tensor

from thinwire.errors import CodecError
from thinwire.kernels.native import FORCED

OLDEST = (3, 6)  # older ones compile an exact division to one that flushes subnormals
ON_CPU = FORCED == "triton" and os.environ.get("TRITON_INTERPRET") == "1"  # Triton's interpreter, for tests

_LOCK = threading.RLock()  # a lane's thread waits until a test is over, and uses no kernel before
_HERE = threading.local()  # which devices this thread tests
_LOADED: list[ModuleType | None] = []
_RIGHT: dict[tuple[torch.device, str], bool] = {}


def gpu_for(family: str, *tensors: Tensor) -> ModuleType | None:
    """The module `entry` if Triton's kernels of a family can work on these tensors: contiguous, on one GPU; else None.

    The families are those of `known_answers.FAMILIES`.
    """
    device = tensors[0].device
    if device.type == "cpu":
        if not ON_CPU:
            if FORCED == "triton":
                raise CodecError(
                    "THINWIRE_KERNELS=triton takes tensors of a GPU; got one of the CPU. Set TRITON_INTERPRET=1 as"
                    " well, for Triton's interpreter, or do not set THINWIRE_KERNELS."
                )
            return None
    elif device.type != "cuda" or FORCED in ("reference", "native"):
        return None
    for tensor in tensors:
        if tensor.device != device or not tensor.is_contiguous():
            return None
    return kernels_of(device, family)


@contextmanager
def untested(device: torch.device) -> Iterator[None]:
    """This thread uses the kernels of this device, to find out whether they are right."""
    before: tuple[torch.device, ...] = getattr(_HERE, "testing", ())
    _HERE.testing = (*before, device)
    try:
        yield
    finally:
        _HERE.testing = before


def kernels_of(device: torch.device, family: str) -> ModuleType | None:
    """The kernels, if they are there and those of the family are right on this device."""
    if device in getattr(_HERE, "testing", ()):
        return loaded()
    right = _RIGHT.get((device, family))
    if right is None:
        with _LOCK:
            right = _RIGHT.get((device, family))
            if right is None:
                right = _RIGHT[device, family] = _test(device, family)
    return loaded() if right else None


def _test(device: torch.device, family: str) -> bool:
    """Whether the kernels are there and their answers on this device are right; warns if not."""
    if loaded() is None:
        return False
    if device.type == "cpu":
        return True
    wrong = importlib.import_module("thinwire.kernels.known_answers").wrong_kernels(device, family)
    if wrong:
        warnings.warn(
            f"thinwire's kernels give wrong bits on {device} ({', '.join(wrong)}); the torch reference is used for"
            f" the family {family!r}, which is right and slower. Please report what `thinwire selftest --device"
            f" {device}` prints.",
            RuntimeWarning,
            stacklevel=2,
        )
    return not wrong


def loaded() -> ModuleType | None:
    """The kernels, if Triton is there; else None, and a warning, or an error if they are forced."""
    if not _LOADED:
        with _LOCK:
            if not _LOADED:
                _LOADED.append(_load())
    return _LOADED[0]


def _load() -> ModuleType | None:
    try:
        found = importlib.import_module("triton").__version__
        if tuple(int(part) for part in found.split(".")[:2]) < OLDEST:
            raise ImportError(f"triton {found} is older than {'.'.join(map(str, OLDEST))}")
        return importlib.import_module("thinwire.kernels.gpu.entry")
    except ImportError as reason:
        remedy = "Install the triton that your torch asks for, 3.6 or newer."
        if FORCED == "triton":
            raise CodecError(f"THINWIRE_KERNELS=triton, but Triton cannot be used ({reason}). {remedy}") from reason
        warnings.warn(
            f"thinwire's GPU kernels are not available ({reason}); the torch reference is used, which gives the same"
            f" results more slowly. {remedy}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
