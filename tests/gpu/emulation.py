"""thinwire's own launches, compiled for a GPU and run by the emulator: dispatch, arguments and kernels together."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tests.gpu.ptx import Run
from thinwire.kernels import gpu, native
from thinwire.kernels.gpu import launch


class Driver:
    """Enough of a driver for Triton to compile for a GPU that is not there."""

    capability = 80

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability  # Triton keeps what it compiled by device

    def get_current_stream(self, device: Any = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda:0")


@cache
def driver() -> Driver:
    import triton

    made = Driver()
    triton.runtime.driver.set_active(made)
    return made


COMPILED: dict[str, Any] = {}  # what Triton made, by its hash
_RUNS: dict[str, Run] = {}


def compiled(kernel: Any, args: tuple[Any, ...], constants: dict[str, Any], **options: Any) -> Any:
    driver()
    options = {"num_warps": 1, "enable_fp_fusion": False} | options
    made = kernel.warmup(*args, grid=(1,), **constants, **options)
    COMPILED[made.hash] = made
    return made


def emulate(kernel: Any, programs: int, args: tuple[Any, ...], constants: dict[str, Any], **options: Any) -> None:
    made = compiled(kernel, args, constants, **options)
    if made.hash not in _RUNS:
        _RUNS[made.hash] = Run(made.asm["ptx"], made.metadata.shared)
    # what is specialised on is no parameter any more
    names = [name for name, kind in made.src.signature.items() if kind != "constexpr"]
    given = dict(zip(kernel.arg_names, args, strict=False))
    _RUNS[made.hash](programs, *(_plain(given[name]) for name in names))


def _plain(value: Any) -> Any:
    return value.detach().numpy() if isinstance(value, Tensor) else value


@contextmanager
def emulated(capability: int = 80, **options: Any) -> Iterator[None]:
    """Kernels of CPU tensors are compiled for this GPU and emulated."""
    held = launch.run, gpu.ON_CPU, native.NATIVE
    driver().capability = capability
    launch.run = lambda *given: emulate(*given, **options)
    gpu.ON_CPU, native.NATIVE = True, None
    try:
        yield
    finally:
        launch.run, gpu.ON_CPU, native.NATIVE = held


@contextmanager
def reference() -> Iterator[None]:
    """Only the reference works."""
    held, native.NATIVE = native.NATIVE, None
    try:
        yield
    finally:
        native.NATIVE = held
