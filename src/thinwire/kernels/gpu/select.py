"""Launches of selection: what `kernels.sparse` asks for. Only the number of elements above a value is waited for."""

import torch
from torch import Tensor

from thinwire.kernels.gpu.launch import launch
from thinwire.kernels.gpu.programs import select as kernels

_BLOCKS = 16  # of 512 elements, for one program
_TOGETHER = _BLOCKS * 512
_SHORT = 4096  # elements for which one program alone is faster than several launches
_LONGEST_CHUNK = 1 << 18  # elements for one program
_DIGITS, _BINS = 4, 256


def largest(x: Tensor, k: int) -> Tensor:
    """Ascending positions of exactly k elements of largest magnitude; among equals the first ones."""
    if x.numel() <= _SHORT:
        return largest_in_chunks(x, max(x.numel(), 1), k, 0)
    out = torch.empty(k, dtype=torch.int64, device=x.device)
    if not k:
        return out
    bins = torch.zeros(_DIGITS * _BINS, dtype=torch.int32, device=x.device)
    for digit in range(_DIGITS):
        launch(kernels.count_digits, _programs(x), x, bins, x.numel(), k, digit, BLOCKS=_BLOCKS)
    threshold = torch.empty(2, dtype=torch.int32, device=x.device)
    launch(kernels.find_threshold, 1, bins, threshold, k)
    launch(kernels.write_chosen, _programs(x), x, threshold, _ends(x, threshold), out, x.numel(), BLOCKS=_BLOCKS)
    return out


def above(x: Tensor, key: int) -> Tensor:
    """Ascending positions of what lies above a key; their number is waited for."""
    threshold = torch.zeros(2, dtype=torch.int32, device=x.device)
    threshold[0].fill_(key)
    ends = _ends(x, threshold)
    out = torch.empty(int(ends[-1, 0]) if x.numel() else 0, dtype=torch.int64, device=x.device)
    launch(kernels.write_chosen, _programs(x), x, threshold, ends, out, x.numel(), BLOCKS=_BLOCKS)
    return out


def largest_in_chunks(x: Tensor, chunk: int, each: int, rest: int) -> Tensor:
    """Ascending positions of the `each` largest of every whole chunk, and of the `rest` largest behind the last one."""
    if chunk > _LONGEST_CHUNK:
        return _chunk_by_chunk(x, chunk, each, rest)
    n = x.numel()
    out = torch.empty(n // chunk * each + rest, dtype=torch.int64, device=x.device)
    width = min(512, max(32, 1 << (chunk - 1).bit_length()))
    launch(kernels.choose_in_chunks, -(-n // chunk), x, out, n, chunk, each, rest, WIDTH=width)
    return out


def _chunk_by_chunk(x: Tensor, chunk: int, each: int, rest: int) -> Tensor:
    whole = x.numel() // chunk * chunk
    parts = [largest(x[at : at + chunk], each) + at for at in range(0, whole, chunk)]
    return torch.cat([*parts, largest(x[whole:], rest) + whole])


def _ends(x: Tensor, threshold: Tensor) -> Tensor:  # int64 [programs, 2]
    """How many elements up to the end of each program lie above the threshold, and how many are equal to it."""
    counts = torch.empty(_programs(x), 2, dtype=torch.int32, device=x.device)
    launch(kernels.count_chosen, _programs(x), x, threshold, counts, x.numel(), BLOCKS=_BLOCKS)
    return counts.cumsum(0)


def _programs(x: Tensor) -> int:
    return -(-x.numel() // _TOGETHER)
