"""Elias omega coding of sign-magnitude symbols: the variable-length code of QSGD (Alistarh et al., 2017, section 3).

A symbol of `bits` bits has its sign in the top bit and its level below; level 0 has no sign. The first byte says which
form follows, the smallest being chosen:

    0  stored   the symbols packed, `bits` each, low first
    1  sparse   count (u32, little-endian), then for each non-zero symbol omega(gap), its sign, omega(level); the first
                gap counts from before the first symbol, so gaps are at least 1
    2  dense    for each symbol omega(level + 1), then its sign unless the level is 0

omega(1) = "0"; else binary(k) and a final "0", preceded by binary(length - 1), and so on until that is 1. The stream is
high first: bit 7 of its first byte is its first bit, and a code stands there as one would write it down.
"""

import torch
from torch import Tensor

from thinwire.errors import CodecError, WireError
from thinwire.kernels.reference.bitstream import (
    BitReader,
    expect_message,
    expect_symbols,
    expect_values,
    expect_width,
    little_endian,
    pack_symbols,
    spell,
    to_bytes,
    unpack_symbols,
)

STORED, SPARSE, DENSE = 0, 1, 2
_MOST_WIDTH = 32  # no number in a message has more bits


def elias_omega(value: int) -> tuple[int, int]:
    """The code word and its length."""
    if value < 1:
        raise CodecError(f"Elias omega codes begin at 1, and {value} has none; add an offset.")
    word, length = 0, 1
    while value > 1:
        width = value.bit_length()
        word |= value << length
        length += width
        value = width - 1
    return word, length


def elias_omega_length(value: int) -> int:
    """Bits of omega(value): log2 k + log2 log2 k + ... + 1, each term rounded up to whole bits."""
    return elias_omega(value)[1]


def _omega_of(values: Tensor) -> tuple[Tensor, Tensor]:
    distinct, which = torch.unique(values, return_inverse=True)
    pairs = torch.tensor([elias_omega(int(value)) for value in distinct], dtype=torch.int64).view(-1, 2)
    return pairs[which, 0], pairs[which, 1]


def _sparse_stream(levels: Tensor, signs: Tensor) -> Tensor:
    positions = levels.nonzero().view(-1)
    gaps = positions - torch.nn.functional.pad(positions[:-1], (1, 0), value=-1)[: positions.numel()]
    gap_words, gap_lengths = _omega_of(gaps)
    words, lengths = _omega_of(levels[positions])
    words = words | signs[positions] << lengths
    return spell(
        torch.stack([gap_words, words], 1).view(-1),
        torch.stack([gap_lengths, lengths + 1], 1).view(-1),
        high_first=True,
    )


def _dense_stream(levels: Tensor, signs: Tensor) -> Tensor:
    words, lengths = _omega_of(levels + 1)
    signed = (levels > 0).to(torch.int64)
    return spell(words << signed | signs, lengths + signed, high_first=True)


def elias_encode(symbols: Tensor, bits: int) -> Tensor:  # [numel] uint8 -> [bytes] uint8
    """The symbols in their smallest form; the lowest tag wins a tie."""
    expect_symbols(symbols, bits, 2)
    expect_values(symbols, bits)
    sent = symbols.to("cpu", torch.int64)
    signs, levels = sent >> bits - 1, sent & (1 << bits - 1) - 1
    if bool((signs > levels).any()):
        raise CodecError("A symbol is minus zero; write level zero without a sign.")
    count = int((levels > 0).sum())
    forms = [
        pack_symbols(sent, bits),
        torch.cat([little_endian(count), to_bytes(_sparse_stream(levels, signs), high_first=True)]),
        to_bytes(_dense_stream(levels, signs), high_first=True),
    ]
    tag = min(range(3), key=lambda form: forms[form].numel())
    return torch.cat([torch.tensor([tag], dtype=torch.uint8), forms[tag]]).to(symbols.device)


def _read_omega(reader: BitReader) -> int:
    value = 1
    while reader.take(1):
        if value > _MOST_WIDTH:
            raise WireError("An Elias code is longer than any number here; resend the message.")
        value = 1 << value | reader.take(value)
    return value


def _expect_level(level: int, bits: int) -> None:
    if level >> bits - 1:
        raise WireError(f"An Elias message has level {level}, which {bits}-bit symbols cannot hold; resend it.")


def _read_sparse(body: Tensor, numel: int, bits: int) -> Tensor:
    header = bytes(body[:4].tolist())
    count = int.from_bytes(header, "little")
    if len(header) < 4 or count > numel or count * 3 > 8 * (body.numel() - 4):
        raise WireError("A sparse Elias message counts more symbols than it can hold; resend it.")
    reader = BitReader(body[4:], high_first=True)
    symbols = torch.zeros(numel, dtype=torch.uint8)
    at = -1
    for _ in range(count):
        at += _read_omega(reader)
        if at >= numel:
            raise WireError(f"A sparse Elias message points outside its {numel} symbols; resend it.")
        sign, level = reader.take(1), _read_omega(reader)
        _expect_level(level, bits)
        symbols[at] = sign << bits - 1 | level
    reader.finish()
    return symbols


def _read_dense(body: Tensor, numel: int, bits: int) -> Tensor:
    reader = BitReader(body, high_first=True)
    symbols: list[int] = []
    for _ in range(numel):
        level = _read_omega(reader) - 1
        _expect_level(level, bits)
        sign = reader.take(1) if level else 0
        symbols.append(sign << bits - 1 | level)
    reader.finish()
    return torch.tensor(symbols, dtype=torch.uint8)


def elias_decode(message: Tensor, numel: int, bits: int) -> Tensor:  # [bytes] uint8 -> [numel] uint8
    """The symbols of a message; refuses every message that is not exactly `numel` of them."""
    expect_width(bits, 2)
    expect_message(message, numel)
    received = message.cpu()
    tag, body = int(received[0]), received[1:]
    if tag == STORED:
        symbols = unpack_symbols(body, numel, bits)
        if bool((symbols == 1 << bits - 1).any()):
            raise WireError("A stored symbol is minus zero; resend the message.")
    elif tag == SPARSE:
        symbols = _read_sparse(body, numel, bits)
    elif tag == DENSE:
        symbols = _read_dense(body, numel, bits)
    else:
        raise WireError(f"An Elias message starts with the unknown tag {tag}; the sender uses another format.")
    return symbols.to(message.device)
