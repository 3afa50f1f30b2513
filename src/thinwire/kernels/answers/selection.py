"""Known answers of selection."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from thinwire.kernels import sparse
from thinwire.kernels.answers.inputs import NUMEL, Check, Work, numbers, same_bits, unaligned
from thinwire.kernels.reference import sparse as reference

_LONG = 9001  # elements: more than one program takes
_CHUNKS = ((64, 7, 3), (1000, 30, 20))


def checks(device: torch.device) -> Iterator[Check]:
    for numel in (NUMEL, _LONG):
        yield f"topk of {numel}", partial(_chooses, numel, device)
    yield "topk in chunks", partial(_chooses_in_chunks, device)
    yield "threshold", partial(_finds_above, device)


def _elements(numel: int) -> Tensor:
    """Special values, and magnitudes that occur often."""
    x = numbers().repeat(-(-numel // NUMEL))[:numel]
    x[::2] = x[::2].mul(4).round().div(4)
    x[5::700] = torch.nan
    return x


def _chooses(numel: int, device: torch.device) -> bool:
    x = _elements(numel)
    return all(
        same_bits(sparse.largest(unaligned(x, device, by), k), reference.largest(x, k))
        for by, k in ((0, 1), (0, numel // 10), (1, numel - 1))
    )


def _chooses_in_chunks(device: torch.device) -> bool:
    x = _elements(NUMEL)[: NUMEL - 10]
    there = x.to(device)
    return all(
        same_bits(sparse.largest_in_chunks(there, *how), reference.largest_in_chunks(x, *how)) for how in _CHUNKS
    )


def _finds_above(device: torch.device) -> bool:
    x = _elements(_LONG)
    there = x.to(device)
    return all(same_bits(sparse.above(there, at), reference.above(x, at)) for at in (0.0, 0.5, -1.0, 3e38))


def works(device: torch.device, numel: int) -> Iterator[Work]:
    x, chunk = torch.randn(numel, device=device), 4096
    yield "topk: 1 in 100", partial(sparse.largest, x, numel // 100)
    yield "topk: 41 of 4096", partial(sparse.largest_in_chunks, x, chunk, 41, min(41, numel % chunk))
    yield "threshold", partial(sparse.above, x, 2.5)
