"""How fast the kernels of a device are, beside a copy on the same device."""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from thinwire.kernels.known_answers import KEY, SCHEMES, scheme_of
from thinwire.kernels.packing import packed_size

_REPEATED = 5


class Timed(NamedTuple):
    kernel: str
    rate: float  # GB of fp32 elements per second
    share: float  # of the rate of a copy


def times(device: torch.device, numel: int) -> Iterator[Timed]:
    """The best of some runs of each kernel, after one that compiles it."""
    x, out = torch.randn(numel, device=device), torch.zeros(numel, device=device)
    copied = _rate(lambda: out.copy_(x), device, numel)
    yield Timed("copy", copied, 1.0)
    for name in SCHEMES:
        scheme = scheme_of(name, device)
        message = torch.zeros(scheme.scale_bytes(numel) + packed_size(numel, scheme.bits), dtype=torch.uint8)
        message = message.to(device)
        encode, decode = scheme.encoder(x, KEY), scheme.decoder(out, "add")
        for what, work in (("encode", encode), ("decode and add", decode)):
            rate = _rate(lambda work=work, message=message: work(0, numel, message), device, numel)  # type: ignore[misc]
            yield Timed(f"{name}: {what}", rate, rate / copied)


def _rate(work: Callable[[], object], device: torch.device, numel: int) -> float:
    best = float("inf")
    for at in range(_REPEATED + 1):
        began = time.perf_counter()
        work()
        if device.type != "cpu":
            torch.get_device_module(device).synchronize(device)
        best = min(best, time.perf_counter() - began) if at else best
    return 4 * numel / best / 1e9
