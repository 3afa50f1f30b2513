"""Small symbols in bytes, compiled where possible; `reference.packing` describes the layout."""

import torch
from torch import Tensor

from thinwire.errors import CodecError, WireError
from thinwire.kernels.gpu import gpu_for
from thinwire.kernels.gpu.layouts import WIDEST
from thinwire.kernels.native import native_for
from thinwire.kernels.reference import packing as reference
from thinwire.kernels.reference.packing import packed_size, symbol_dtype

__all__ = ["check_packed", "check_symbols", "pack", "packed_size", "symbol_dtype", "unpack"]


def check_symbols(symbols: Tensor, bits: int) -> None:
    """Refuse symbols of another type than their width asks for."""
    reference.check_width(bits)
    if symbols.dtype != symbol_dtype(bits):
        raise CodecError(f"symbols of {bits} bits are {symbol_dtype(bits)}, not {symbols.dtype}; convert them first")


def check_packed(packed: Tensor, numel: int, bits: int) -> None:
    """Refuse bytes that cannot be `numel` packed symbols."""
    size = packed_size(numel, bits)
    if packed.dtype != torch.uint8 or packed.numel() != size:
        raise WireError(
            f"{numel} symbols of {bits} bits are {size} bytes, but {packed.numel()} of {packed.dtype} came;"
            " the message is truncated or of another codec"
        )


def pack(symbols: Tensor, bits: int) -> Tensor:
    """Symbols [numel] -> uint8 [packed_size(numel, bits)]."""
    check_symbols(symbols, bits)
    if bits <= WIDEST and (gpu := gpu_for("packing", symbols)) is not None:
        packed = torch.empty(packed_size(symbols.numel(), bits), dtype=torch.uint8, device=symbols.device)
        gpu.symbols.pack(symbols, bits, packed)
        return packed
    native = native_for(symbols)
    if native is None:
        return reference.pack(symbols, bits)
    packed = torch.empty(packed_size(symbols.numel(), bits), dtype=torch.uint8)
    native.pack(symbols, bits, packed)
    return packed


def unpack(packed: Tensor, numel: int, bits: int) -> Tensor:
    """uint8 [packed_size(numel, bits)] -> symbols [numel]; raises WireError on any other length."""
    check_packed(packed, numel, bits)
    if bits <= WIDEST and (gpu := gpu_for("packing", packed)) is not None:
        symbols = torch.empty(numel, dtype=symbol_dtype(bits), device=packed.device)
        gpu.symbols.unpack(packed, bits, symbols)
        return symbols
    native = native_for(packed)
    if native is None:
        return reference.unpack(packed, numel, bits)
    symbols = torch.empty(numel, dtype=symbol_dtype(bits))
    native.unpack(packed, bits, symbols)
    return symbols
