"""Known answers of the integers of one scale."""

from collections.abc import Iterator
from functools import partial

import torch

from thinwire.kernels import integers
from thinwire.kernels.answers.inputs import (
    BASE,
    KEY,
    NUMEL,
    RANKS,
    Check,
    Work,
    finite_numbers,
    ordinary,
    same_bits,
)
from thinwire.kernels.reference import integers as reference
from thinwire.kernels.reference.shares import divided

_BITS, _LEVELS, _FACTOR, _UNIT, _SCALE = 8, 31, 90.0, 0.03, 1.5
_LIFTS = (1.0, 2.0**100, 2.0**-100)  # what the stage multiplies tiny and huge elements by


def checks(device: torch.device) -> Iterator[Check]:
    yield "integers: encode", partial(_encodes, device)
    yield "integers: decode", partial(_decodes, device)


def _lanes(lift: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Elements that such a lift is made for, and their lanes."""
    small = finite_numbers().clamp(-1.0, 1.0) / lift
    return small, reference.integers_encode(divided(small, RANKS), _BITS, _LEVELS, lift, _FACTOR, KEY, BASE)


def _encodes(device: torch.device) -> bool:
    right = True
    for lift in _LIFTS:
        small, wanted = _lanes(lift)
        room = torch.zeros(wanted.numel(), dtype=torch.int32, device=device)
        integers.integers_encode(small.to(device), RANKS, _BITS, _LEVELS, lift, _FACTOR, KEY, BASE, room)
        right = right and same_bits(room, wanted)
    return right


def _decodes(device: torch.device) -> bool:
    lanes, out, right = _lanes(1.0)[1], ordinary(4), True
    for add in (False, True):
        wanted, to = out.clone(), out.to(device, copy=True)
        reference.integers_decode(lanes, _BITS, _UNIT, _SCALE, wanted, add)
        integers.integers_decode(lanes.to(device), _BITS, _UNIT, _SCALE, to, add)
        right = right and same_bits(to[:NUMEL], wanted)
    return right


def works(device: torch.device, numel: int) -> Iterator[Work]:
    x, out = torch.randn(numel, device=device), torch.zeros(numel, device=device)
    lanes = torch.zeros(reference.lane_count(numel, _BITS), dtype=torch.int32, device=device)
    fixed = (_BITS, _LEVELS, 1.0, _FACTOR, KEY, BASE)
    yield "integers: encode", partial(integers.integers_encode, x, RANKS, *fixed, lanes)
    yield "integers: decode and add", partial(integers.integers_decode, lanes, _BITS, _UNIT, _SCALE, out, True)
