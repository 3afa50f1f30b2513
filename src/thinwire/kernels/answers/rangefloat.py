"""Known answers of range floats."""

from collections.abc import Iterator
from functools import partial

import torch

from thinwire.kernels import rangefloat
from thinwire.kernels.answers.inputs import (
    BASE,
    KEY,
    NUMEL,
    Check,
    Work,
    finite_numbers,
    ordinary,
    same_bits,
    unaligned,
)
from thinwire.kernels.reference import packing as reference_packing
from thinwire.kernels.reference import rangefloat as reference
from thinwire.kernels.reference.rangefloat import RangeGrid, Rounding

_BITS, _MANTISSA = 8, 3
_ROUNDINGS: tuple[Rounding, ...] = ("stochastic", "nearest")


def checks(device: torch.device) -> Iterator[Check]:
    for rounding in _ROUNDINGS:
        yield f"rangefloat: encode, {rounding}", partial(_encodes, rounding, device)
    yield "rangefloat: decode", partial(_decodes, device)


def _grid() -> RangeGrid:
    """One that some elements do not fit."""
    return reference.rangefloat_grid(_BITS, _MANTISSA, -2.0, 3.0)


def _codes(rounding: Rounding) -> tuple[torch.Tensor, int]:
    return reference.rangefloat_symbols(finite_numbers(), _BITS, _MANTISSA, _grid(), rounding, KEY, BASE)


def _encodes(rounding: Rounding, device: torch.device) -> bool:
    codes, saturated = _codes(rounding)
    wanted, right = reference_packing.pack(codes, _BITS), True
    x = finite_numbers().to(device)
    for offset in (0, 1):
        room = unaligned(torch.zeros_like(wanted), device, offset)
        found = rangefloat.rangefloat_encode(x, _BITS, _MANTISSA, _grid(), rounding, KEY, BASE, room)
        right = right and same_bits(room, wanted) and found == saturated
    return right


def _decodes(device: torch.device) -> bool:
    codes, out = _codes("stochastic")[0], ordinary(4)
    packed, right = reference_packing.pack(codes, _BITS), True
    for add in (False, True):
        for offset in (0, 1):
            wanted, to = out.clone(), out.to(device, copy=True)
            reference.rangefloat_dequantise(codes, _BITS, _MANTISSA, _grid(), wanted, add)
            given = unaligned(packed, device, offset)
            rangefloat.rangefloat_decode(given, _BITS, _MANTISSA, _grid(), to, add)
            right = right and same_bits(to[:NUMEL], wanted)
    return right


def works(device: torch.device, numel: int) -> Iterator[Work]:
    x, out = torch.randn(numel, device=device), torch.zeros(numel, device=device)
    room = torch.zeros(reference_packing.packed_size(numel, _BITS), dtype=torch.uint8, device=device)
    fixed = (_BITS, _MANTISSA, _grid())
    for rounding in _ROUNDINGS:
        encode = partial(rangefloat.rangefloat_encode, x, *fixed, rounding, KEY, BASE, room)
        yield f"rangefloat: encode, {rounding}", encode
    yield "rangefloat: decode and add", partial(rangefloat.rangefloat_decode, room, *fixed, out, True)
