"""Streams of bits in torch: written by one scatter, read one code at a time.

Two orders occur. *Low first*: bit j of byte i is bit 8i+j of the stream, and a code enters with its lowest bit first.
*High first*: bit 7-j of byte i is bit 8i+j, and a code enters with its highest bit first, as one would write it down.
"""

import torch
from torch import Tensor

from thinwire.errors import CodecError, WireError

_LOW_FIRST = 1 << torch.arange(8)
MOST_ELEMENTS = 2**32 - 1


def expect_room(numel: int) -> None:
    """Counts and positions travel as 32-bit numbers."""
    if not 0 <= numel <= MOST_ELEMENTS:
        raise CodecError(f"A coded tensor has 0 to {MOST_ELEMENTS} elements, not {numel}; split it into several.")


def expect_width(bits: int, fewest: int) -> None:
    """Symbols live in bytes; a sign takes one bit of them."""
    if not fewest <= bits <= 8:
        raise CodecError(f"Symbols have {fewest} to 8 bits, not {bits}; choose another width.")


def expect_symbols(symbols: Tensor, bits: int, fewest: int) -> None:
    """Symbols are a flat uint8 tensor."""
    expect_width(bits, fewest)
    if symbols.dtype != torch.uint8 or symbols.dim() != 1:
        raise CodecError(f"Symbols must be a flat uint8 tensor, not {symbols.dtype} of {symbols.dim()} dimensions.")
    expect_room(symbols.numel())


def expect_message(message: Tensor, numel: int) -> None:
    """A message is a flat uint8 tensor with at least its tag byte."""
    expect_room(numel)
    if message.dtype != torch.uint8 or message.dim() != 1 or message.numel() == 0:
        raise WireError("A message must be a flat uint8 tensor of at least one byte; pass the bytes as they arrived.")


def expect_values(symbols: Tensor, bits: int) -> None:
    """No symbol may reach into the bits of its neighbour."""
    if symbols.numel() and int(symbols.max()) >> bits:
        raise CodecError(f"Symbol {int(symbols.max())} does not fit {bits} bits; encode with more bits.")


def spell(codes: Tensor, lengths: Tensor, high_first: bool = False) -> Tensor:
    """The bits of all codes one after another, as a stream of 0 and 1."""
    codes, lengths = codes.to(torch.int64), lengths.to(torch.int64)
    owner = torch.repeat_interleave(torch.arange(codes.numel()), lengths)
    nth = torch.arange(owner.numel()) - (lengths.cumsum(0) - lengths)[owner]
    shift = lengths[owner] - 1 - nth if high_first else nth
    return (codes[owner] >> shift & 1).to(torch.uint8)


def to_bytes(stream: Tensor, high_first: bool = False) -> Tensor:
    """A stream of bits as bytes, the last byte filled up with zeros."""
    padded = torch.nn.functional.pad(stream.to(torch.int64), (0, -stream.numel() % 8)).view(-1, 8)
    weights = _LOW_FIRST.flip(0) if high_first else _LOW_FIRST
    return (padded * weights).sum(1).to(torch.uint8)


def to_bits(message: Tensor, high_first: bool = False) -> Tensor:
    """The bits of a message in the order of its stream."""
    shifts = torch.arange(8).flip(0) if high_first else torch.arange(8)
    return (message.to("cpu", torch.int64).view(-1, 1) >> shifts & 1).view(-1)


def little_endian(value: int) -> Tensor:
    """A 32-bit number as four bytes, lowest first."""
    return torch.tensor(list(value.to_bytes(4, "little")), dtype=torch.uint8)


def pack_symbols(symbols: Tensor, bits: int) -> Tensor:
    """Symbol j occupies bits [j*bits, (j+1)*bits) of a low-first stream."""
    return to_bytes(spell(symbols, torch.full((symbols.numel(),), bits)))


def unpack_symbols(packed: Tensor, numel: int, bits: int) -> Tensor:
    """Inverse of pack_symbols; refuses any other length and padding that is not zero."""
    if packed.numel() != (numel * bits + 7) // 8:
        raise WireError(f"{numel} stored symbols of {bits} bits have the wrong length {packed.numel()}; resend them.")
    stream = to_bits(packed)
    if bool(stream[numel * bits :].any()):
        raise WireError("The padding behind stored symbols is not zero; resend the message.")
    return (stream[: numel * bits].view(numel, bits) * _LOW_FIRST[:bits]).sum(1).to(torch.uint8)


class BitReader:
    """Takes codes off a stream and refuses to read behind its end."""

    def __init__(self, message: Tensor, high_first: bool = False) -> None:
        self.bits: list[int] = to_bits(message, high_first).tolist()
        self.high_first = high_first
        self.at = 0

    def take(self, count: int) -> int:
        """The next bits as a number."""
        taken = self.bits[self.at : self.at + count]
        if len(taken) < count:
            raise WireError("A bit stream ends in the middle of a code; resend the message.")
        self.at += count
        value = 0
        for bit in taken if self.high_first else reversed(taken):
            value = value << 1 | bit
        return value

    def take_zeros(self) -> int:
        """How many zeros come before the next one, which is taken too."""
        zeros = 0
        while not self.take(1):
            zeros += 1
        return zeros

    def finish(self) -> None:
        """The stream must end within its last byte, and with zeros."""
        rest = self.bits[self.at :]
        if len(rest) >= 8 or any(rest):
            raise WireError("A message goes on behind its last code; resend it.")
