"""Launches of what makes symbols of elements, but for the bucketed quantisers: packing, range floats, integers."""

import struct

import torch
from torch import Tensor

from thinwire.kernels.gpu.launch import launch, signed32
from thinwire.kernels.gpu.programs import integers, packing, rangefloat
from thinwire.kernels.gpu.quantise import parts
from thinwire.kernels.reference.packing import BLOCK
from thinwire.kernels.reference.quantise import single


def pack(symbols: Tensor, bits: int, packed: Tensor) -> None:
    launch(packing.pack, _blocks(symbols), symbols, packed, symbols.numel(), BITS=bits, PARTS=parts(bits))


def unpack(packed: Tensor, bits: int, symbols: Tensor) -> None:
    launch(packing.unpack, _blocks(symbols), packed, symbols, symbols.numel(), BITS=bits, PARTS=parts(bits))


def range_encode(
    x: Tensor, bits: int, mantissa: int, grid: tuple[int, int, int], stochastic: bool, key: int, base: int, out: Tensor
) -> Tensor:
    """Packed codes, and the number of saturated elements as a tensor of one number."""
    shift = 23 - mantissa
    smallest = grid[0] << shift
    middle = smallest - (1 << 23) if smallest >= 1 << 24 else smallest >> 1
    eps: float = struct.unpack("<f", struct.pack("<i", smallest))[0]
    blocks = _blocks(x)
    saturated = torch.zeros(max(blocks, 1), dtype=torch.int32, device=x.device)
    words = signed32(key), signed32(key >> 32), signed32(base)
    launch(
        rangefloat.encode, blocks, x, out, saturated, x.numel(), *words, *grid, single(1 / eps), middle, BITS=bits,
        PARTS=parts(bits), MANTISSA=mantissa, STOCHASTIC=stochastic,
    )  # fmt: skip
    return saturated.sum()


def range_decode(packed: Tensor, bits: int, mantissa: int, grid: tuple[int, int, int], out: Tensor, add: bool) -> None:
    launch(
        rangefloat.decode, _blocks(out), packed, out, out.numel(), *grid, BITS=bits, PARTS=parts(bits),
        MANTISSA=mantissa, ADD=add,
    )  # fmt: skip


def integers_encode(
    x: Tensor, ranks: int, bits: int, levels: int, lift: float, factor: float, key: int, base: int, lanes: Tensor
) -> None:
    words = signed32(key), signed32(key >> 32), signed32(base)
    launch(
        integers.encode, _blocks(lanes), x, lanes, x.numel(), lanes.numel(), ranks, levels, lift, factor, *words,
        RANKS=ranks != 1, BITS=bits,
    )  # fmt: skip


def integers_decode(lanes: Tensor, bits: int, unit: float, scale: float, out: Tensor, add: bool) -> None:
    launch(integers.decode, _blocks(lanes), lanes, out, out.numel(), lanes.numel(), unit, scale, BITS=bits, ADD=add)


def _blocks(x: Tensor) -> int:
    return -(-x.numel() // BLOCK)
