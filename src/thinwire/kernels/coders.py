"""Packed positions and entropy coders: compiled where possible, else Python. The reference describes the formats.

What lies on another device is copied to the CPU, coded there, and copied back: one copy each way, and never a loop in
Python over elements of the device.
"""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

import torch
from torch import Tensor

from thinwire.kernels.native import native_for
from thinwire.kernels.reference import elias, huffman, indices
from thinwire.kernels.reference.bitstream import expect_message, expect_symbols, expect_width
from thinwire.kernels.reference.elias import elias_omega_length
from thinwire.kernels.reference.indices import expected_indices_size, packed_indices_bound

__all__ = [
    "elias_decode",
    "elias_encode",
    "elias_omega_length",
    "expected_indices_size",
    "huffman_decode",
    "huffman_encode",
    "pack_indices",
    "packed_indices_bound",
    "unpack_indices",
]


P = ParamSpec("P")
Coder = Callable[Concatenate[Tensor, P], Tensor]


def _on_the_cpu(code: Coder[P]) -> Coder[P]:
    @wraps(code)
    def there_and_back(data: Tensor, /, *args: P.args, **kwargs: P.kwargs) -> Tensor:
        if data.is_cpu:
            return code(data, *args, **kwargs)
        return code(data.cpu(), *args, **kwargs).to(data.device)

    return there_and_back


@_on_the_cpu
def pack_indices(positions: Tensor, numel: int) -> Tensor:  # [count] int64 -> [bytes] uint8
    """Ascending unique positions below numel in the smallest of three forms: bitmap, raw numbers, Rice-coded gaps."""
    indices.expect_positions(positions, numel)
    native = native_for(positions)
    if native is None:
        return indices.pack_indices(positions, numel)
    tag, rice, size = native.plan_indices(positions, numel)
    out = torch.empty(size, dtype=torch.uint8)
    native.write_indices(positions, tag, rice, out)
    return out


@_on_the_cpu
def unpack_indices(message: Tensor, numel: int, count: int | None = None) -> Tensor:  # [bytes] uint8 -> [count] int64
    """The positions of a message; refuses what is not ascending, below numel, and `count` long if that is given."""
    expect_message(message, numel)
    native = native_for(message)
    if native is None:
        return indices.unpack_indices(message, numel, count)
    found = native.count_indices(message, numel)
    indices.expect_claimed(found, count)
    out = torch.empty(found, dtype=torch.int64)
    native.read_indices(message, numel, out)
    return out


@_on_the_cpu
def huffman_encode(symbols: Tensor, bits: int) -> Tensor:  # [numel] uint8 -> [bytes] uint8
    """Symbols of 1 to 8 bits near their entropy, never longer than packed plus one byte."""
    expect_symbols(symbols, bits, 1)
    native = native_for(symbols)
    if native is None:
        return huffman.huffman_encode(symbols, bits)
    out = _room_for(symbols, bits)
    return out[: native.huffman_encode(symbols, bits, out)]


@_on_the_cpu
def huffman_decode(message: Tensor, numel: int, bits: int) -> Tensor:  # [bytes] uint8 -> [numel] uint8
    """The symbols of a message; refuses every message that is not exactly `numel` of them."""
    expect_width(bits, 1)
    expect_message(message, numel)
    native = native_for(message)
    if native is None:
        return huffman.huffman_decode(message, numel, bits)
    out = torch.empty(numel, dtype=torch.uint8)
    native.huffman_decode(message, bits, out)
    return out


@_on_the_cpu
def elias_encode(symbols: Tensor, bits: int) -> Tensor:  # [numel] uint8 -> [bytes] uint8
    """Sign-magnitude symbols of 2 to 8 bits in Elias omega codes, never longer than packed plus one byte."""
    expect_symbols(symbols, bits, 2)
    native = native_for(symbols)
    if native is None:
        return elias.elias_encode(symbols, bits)
    out = _room_for(symbols, bits)
    return out[: native.elias_encode(symbols, bits, out)]


@_on_the_cpu
def elias_decode(message: Tensor, numel: int, bits: int) -> Tensor:  # [bytes] uint8 -> [numel] uint8
    """The symbols of a message; refuses every message that is not exactly `numel` of them."""
    expect_width(bits, 2)
    expect_message(message, numel)
    native = native_for(message)
    if native is None:
        return elias.elias_decode(message, numel, bits)
    out = torch.empty(numel, dtype=torch.uint8)
    native.elias_decode(message, bits, out)
    return out


def _room_for(symbols: Tensor, bits: int) -> Tensor:
    return torch.empty(1 + (symbols.numel() * bits + 7) // 8, dtype=torch.uint8)
