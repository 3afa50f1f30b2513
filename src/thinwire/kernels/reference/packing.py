"""The layout of small symbols in bytes: the specification of `thinwire.kernels.packing`.

Symbols go in blocks of 512; a last block of m < 512 is padded with zeros to a multiple of 8. The width is split into
planes of 8, 4, 2 or 1 bits, the largest first, low bits first: 7 bits are a plane of bits 0-3, one of bits 4-5 and one
of bit 6. In a plane of width w, byte j of a block of m symbols holds symbols j, j + mw/8, j + 2mw/8, ... side by side:
whole vectors of symbols are shifted and merged, nothing crosses a lane, and every byte has one owner.
"""

import torch
from torch import Tensor

from thinwire.errors import CodecError, WireError

BLOCK = 512
MAX_BITS = 16


def check_width(bits: int) -> None:
    """Refuse a symbol width that the format does not have."""
    if not 1 <= bits <= MAX_BITS:
        raise CodecError(f"symbols have 1 to {MAX_BITS} bits, not {bits}; choose a width in that range")


def symbol_dtype(bits: int) -> torch.dtype:
    """uint8 holds symbols of up to 8 bits; wider ones are int32, as torch does little with uint16."""
    return torch.uint8 if bits <= 8 else torch.int32


def planes(bits: int) -> list[tuple[int, int]]:
    """(offset, width) of each plane of a symbol, in the order in which they are stored."""
    found = []
    offset = 0
    while offset < bits:
        width = next(w for w in (8, 4, 2, 1) if offset + w <= bits)
        found.append((offset, width))
        offset += width
    return found


def packed_size(numel: int, bits: int) -> int:
    """Bytes that `numel` symbols of this width occupy: numel * bits / 8, the last block rounded up to 8 symbols."""
    check_width(bits)
    return -(-numel // 8) * bits


def _pack_blocks(blocks: Tensor, bits: int) -> Tensor:
    """[count, m] symbols -> [count * m * bits / 8] bytes, all blocks being equally long."""
    count, m = blocks.shape
    parts = []
    for offset, width in planes(bits):
        fields = (blocks >> offset) & ((1 << width) - 1)
        fields = fields.view(count, 8 // width, m * width // 8)
        shifts = torch.arange(0, 8, width, dtype=torch.int32, device=blocks.device).view(1, -1, 1)
        parts.append((fields << shifts).sum(1, dtype=torch.int32))
    return torch.cat(parts, 1).to(torch.uint8).view(-1)


def _unpack_blocks(data: Tensor, count: int, m: int, bits: int) -> Tensor:
    """The inverse of `_pack_blocks`: bytes -> [count * m] int32 symbols."""
    rows = data.to(torch.int32).view(count, m * bits // 8)
    symbols = torch.zeros(count, m, dtype=torch.int32, device=data.device)
    start = 0
    for offset, width in planes(bits):
        size = m * width // 8
        shifts = torch.arange(0, 8, width, dtype=torch.int32, device=data.device).view(1, -1, 1)
        fields = (rows[:, start : start + size].unsqueeze(1) >> shifts) & ((1 << width) - 1)
        symbols |= fields.reshape(count, m) << offset
        start += size
    return symbols.view(-1)


def pack(symbols: Tensor, bits: int) -> Tensor:
    """Symbols [numel] -> uint8 [packed_size(numel, bits)]; bits of a symbol above the width are dropped."""
    check_width(bits)
    whole = symbols.numel() // BLOCK * BLOCK
    wide = symbols.to(torch.int32)
    tail = wide[whole:]
    tail = torch.nn.functional.pad(tail, (0, -tail.numel() % 8))
    return torch.cat((_pack_blocks(wide[:whole].view(-1, BLOCK), bits), _pack_blocks(tail.view(1, -1), bits)))


def unpack(data: Tensor, numel: int, bits: int) -> Tensor:
    """uint8 [packed_size(numel, bits)] -> symbols [numel]; padding is ignored, whatever it holds."""
    size = packed_size(numel, bits)
    if data.numel() != size:
        raise WireError(
            f"{numel} symbols of {bits} bits are {size} bytes, but {data.numel()} came;"
            " the message is truncated or of another codec"
        )
    count, tail = divmod(numel, BLOCK)
    split = packed_size(count * BLOCK, bits)
    padded = tail + -tail % 8
    front = _unpack_blocks(data[:split], count, BLOCK, bits)
    back = _unpack_blocks(data[split:], 1, padded, bits)
    return torch.cat((front, back[:tail])).to(symbol_dtype(bits))
