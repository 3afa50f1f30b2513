"""How fast the kernels of a device are, beside a copy on the same device."""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from thinwire.kernels.gpu import untested
from thinwire.kernels.known_answers import FAMILIES, said

_REPEATED = 5


class Timed(NamedTuple):
    kernel: str
    rate: float  # GB of fp32 elements per second
    share: float  # of the rate of a copy
    error: str = ""  # why there is no time


def times(device: torch.device, numel: int) -> Iterator[Timed]:
    """The best of some runs of each kernel, after one that compiles it."""
    x, out = torch.randn(numel, device=device), torch.zeros(numel, device=device)
    copied = _rate(lambda: out.copy_(x), device, numel)
    yield Timed("copy", copied, 1.0)
    for family in FAMILIES.values():
        for kernel, work in family.works(device, numel):
            try:
                with untested(device):
                    rate = _rate(work, device, numel)
            except Exception as reason:  # Triton and drivers raise errors of their own
                yield Timed(kernel, 0.0, 0.0, said(reason))
            else:
                yield Timed(kernel, rate, rate / copied)


def _rate(work: Callable[[], object], device: torch.device, numel: int) -> float:
    best = float("inf")
    for at in range(_REPEATED + 1):
        began = time.perf_counter()
        work()
        if device.type != "cpu":
            torch.get_device_module(device).synchronize(device)
        best = min(best, time.perf_counter() - began) if at else best
    return 4 * numel / best / 1e9
