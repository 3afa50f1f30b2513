"""Known answers of packing."""

from collections.abc import Iterator
from functools import partial

import torch

from thinwire.kernels import packing
from thinwire.kernels.answers.inputs import NUMEL, Check, Work, numbers, same_bits, unaligned
from thinwire.kernels.reference import packing as reference

_BITS = (7, 12)  # symbols of a byte and of a word


def checks(device: torch.device) -> Iterator[Check]:
    for bits in _BITS:
        yield f"pack: {bits} bits", partial(_packs, bits, device)
        yield f"unpack: {bits} bits", partial(_unpacks, bits, device)


def _symbols(bits: int) -> torch.Tensor:
    patterns = numbers().view(torch.int32)
    return patterns.bitwise_and(2**bits - 1).to(reference.symbol_dtype(bits))


def _packs(bits: int, device: torch.device) -> bool:
    symbols = _symbols(bits)
    wanted = reference.pack(symbols, bits)
    return all(same_bits(packing.pack(unaligned(symbols, device, by), bits), wanted) for by in (0, 1))


def _unpacks(bits: int, device: torch.device) -> bool:
    symbols = _symbols(bits)
    packed = reference.pack(symbols, bits)
    return all(same_bits(packing.unpack(unaligned(packed, device, by), NUMEL, bits), symbols) for by in (0, 1))


def works(device: torch.device, numel: int) -> Iterator[Work]:
    symbols = torch.zeros(numel, dtype=torch.uint8, device=device)
    packed = torch.zeros(packing.packed_size(numel, 4), dtype=torch.uint8, device=device)
    yield "pack: 4 bits", partial(packing.pack, symbols, 4)
    yield "unpack: 4 bits", partial(packing.unpack, packed, numel, 4)
