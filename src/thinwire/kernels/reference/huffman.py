"""Huffman-coded symbols of 1 to 8 bits.

The first byte says which form follows, the smallest being chosen:

    0  stored     the symbols packed, `bits` each, low first
    1  coded      see below
    2  constant   one byte, the symbol that all of them are

Coded: 8 // bits neighbours form one code symbol (of `group` symbols the first lowest; zeros behind the last one),
because a code word has at least one whole bit and QSGD's symbols often deserve less. Short messages may use
group = 1, whose table is shorter. Code symbols are dealt in turn to four low-first bit streams, which a CPU decodes
side by side. The layout is

    1 | group (u8) | code lengths | sizes of streams 0, 1, 2 (varints, low seven bits first) | streams 0, 1, 2, 3

Codes are canonical (shorter first, then by symbol), at most 12 bits, entered with their highest bit first. Code
lengths are nibbles, low nibble first: 0..12 a length; 13 n: n+3 zeros; 14 lo hi: lo+16hi+19 zeros; 15 n: the last
length n+3 times.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from thinwire.errors import WireError
from thinwire.kernels.reference.bitstream import (
    BitReader,
    expect_message,
    expect_symbols,
    expect_values,
    expect_width,
    pack_symbols,
    spell,
    to_bytes,
    unpack_symbols,
)

STORED, CODED, CONSTANT = 0, 1, 2
_STREAMS = 4
_MOST_LENGTH = 12
_SINGLES_UP_TO = 1 << 16
_ZEROS, _MANY_ZEROS, _REPEAT = 13, 14, 15
_SHORTEST, _MANY = 3, 19


def _byte_tensor(values: list[int] | bytes) -> Tensor:
    return torch.tensor(list(values), dtype=torch.uint8)


def code_lengths(counts: list[int]) -> list[int]:
    """Optimal code lengths of at most 12 bits by package-merge (Larmore & Hirschberg, 1990).

    Every level merges the leaves with pairs of the level before, a leaf first among equals. The first 2m-2 items of
    the last level make the code: a symbol is as long as the number of levels in which its leaf is among those needed.
    """
    used = sorted((symbol for symbol, count in enumerate(counts) if count), key=lambda symbol: (counts[symbol], symbol))
    lengths = [0] * len(counts)
    if len(used) == 1:
        lengths[used[0]] = lengths[used[0] ^ 1] = 1  # a code needs two words
        return lengths
    items: list[tuple[int, bool]] = []
    levels: list[list[tuple[int, bool]]] = []
    for _ in range(_MOST_LENGTH):
        pairs = zip(items[::2], items[1::2], strict=False)
        packages = [(first + second, False) for (first, _), (second, _) in pairs]
        items = sorted([(counts[symbol], True) for symbol in used] + packages, key=lambda item: (item[0], not item[1]))
        levels.append(items)
    needed = 2 * len(used) - 2
    for items in reversed(levels):
        leaves = sum(is_leaf for _, is_leaf in items[:needed])
        for symbol in used[:leaves]:
            lengths[symbol] += 1
        needed = 2 * (needed - leaves)
    return lengths


def code_words(lengths: list[int]) -> list[int]:
    """The canonical code of each symbol, as a number whose highest bit is sent first."""
    words = [0] * len(lengths)
    following = 0
    for length in range(1, _MOST_LENGTH + 1):
        for symbol, own in enumerate(lengths):
            if own == length:
                words[symbol] = following
                following += 1
        following <<= 1
    return words


def _length_nibbles(lengths: list[int]) -> Iterator[int]:
    at = 0
    while at < len(lengths):
        length, run = lengths[at], 1
        while at + run < len(lengths) and lengths[at + run] == length:
            run += 1
        if length == 0 and run >= _MANY:
            run = min(run, _MANY + 255)
            yield from (_MANY_ZEROS, (run - _MANY) & 15, (run - _MANY) >> 4)
        elif run >= _SHORTEST and (length == 0 or (at > 0 and length == lengths[at - 1])):
            run = min(run, _SHORTEST + 15)
            yield from (_REPEAT if length else _ZEROS, run - _SHORTEST)
        else:
            run = 1
            yield length
        at += run


def _read_lengths(body: Tensor, alphabet: int) -> tuple[list[int], int]:
    """The code lengths and how many bytes they took."""
    nibbles = BitReader(body[:alphabet])
    lengths: list[int] = []
    while len(lengths) < alphabet:
        length, run = nibbles.take(4), 1
        if length == _REPEAT and not lengths:
            raise WireError("The code lengths of a Huffman message begin with a repeat; resend it.")
        if length == _MANY_ZEROS:
            run = _MANY + nibbles.take(8)
        elif length >= _ZEROS:
            run = _SHORTEST + nibbles.take(4)
        value = length if length <= _MOST_LENGTH else lengths[-1] if length == _REPEAT else 0
        lengths += [value] * run
    if len(lengths) > alphabet:
        raise WireError("A Huffman message has more code lengths than symbols; resend it.")
    if sum(1 << (_MOST_LENGTH - length) for length in lengths if length) != 1 << _MOST_LENGTH:
        raise WireError("The code lengths of a Huffman message form no complete code; resend it.")
    if nibbles.at % 8 and nibbles.take(4):
        raise WireError("The padding behind the code lengths is not zero; resend the message.")
    return lengths, nibbles.at // 8


def _varint(value: int) -> list[int]:
    return [value] if value < 128 else [value & 127 | 128, *_varint(value >> 7)]


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for nth, byte in enumerate(data[at : at + 5]):
        value |= (byte & 127) << (7 * nth)
        if byte < 128:
            return value, at + nth + 1
    raise WireError("A Huffman message has no valid stream lengths; resend it.")


def _grouped(symbols: Tensor, bits: int, group: int) -> Tensor:
    padded = torch.nn.functional.pad(symbols.to(torch.int64), (0, -symbols.numel() % group)).view(-1, group)
    return (padded << torch.arange(group) * bits).sum(1)


def _code(symbols: Tensor, bits: int, group: int) -> Tensor:
    """The coded form with this many symbols to a code word."""
    values = _grouped(symbols, bits, group)
    counts = torch.bincount(values, minlength=1 << bits * group)
    lengths = code_lengths(counts.tolist())
    words, sizes = torch.tensor(code_words(lengths)), torch.tensor(lengths)
    streams = [
        to_bytes(spell(words[part], sizes[part], high_first=True))
        for part in (values[s::_STREAMS] for s in range(_STREAMS))
    ]
    header = [CODED, group]
    nibbles = list(_length_nibbles(lengths))
    nibbles += [0] * (len(nibbles) % 2)
    header += [low | high << 4 for low, high in zip(nibbles[::2], nibbles[1::2], strict=True)]
    for stream in streams[:-1]:
        header += _varint(stream.numel())
    return torch.cat([_byte_tensor(header), *streams])


def huffman_encode(symbols: Tensor, bits: int) -> Tensor:  # [numel] uint8 -> [bytes] uint8
    """The symbols in their smallest form; stored wins a tie, then the larger group."""
    expect_symbols(symbols, bits, 1)
    expect_values(symbols, bits)
    sent = symbols.cpu()
    forms = [torch.cat([_byte_tensor([STORED]), pack_symbols(sent, bits)])]
    if sent.numel() and bool((sent == sent[0]).all()):
        forms.append(_byte_tensor([CONSTANT, int(sent[0])]))
    elif sent.numel():
        forms.append(_code(sent, bits, 8 // bits))
        if bits <= 4 and sent.numel() <= _SINGLES_UP_TO:
            forms.append(_code(sent, bits, 1))
    return min(forms, key=Tensor.numel).to(symbols.device)


def _read_stream(stream: Tensor, num_codes: int, symbol_of: dict[tuple[int, int], int]) -> list[int]:
    reader = BitReader(stream, high_first=False)
    values: list[int] = []
    for _ in range(num_codes):
        word, length = reader.take(1), 1
        while (length, word) not in symbol_of:
            word, length = word << 1 | reader.take(1), length + 1
        values.append(symbol_of[length, word])
    reader.finish()
    return values


def _read_coded(message: Tensor, numel: int, bits: int) -> Tensor:
    group = int(message[1]) if message.numel() > 1 else 0
    if group not in (1, 8 // bits):
        raise WireError(f"A Huffman message groups its symbols by {group}; the sender uses another format.")
    lengths, used = _read_lengths(message[2:], 1 << bits * group)
    data, at = bytes(message.tolist()), 2 + used
    sizes: list[int] = []
    for _ in range(_STREAMS - 1):
        size, at = _read_varint(data, at)
        sizes.append(size)
    sizes.append(message.numel() - at - sum(sizes))
    if sizes[-1] < 0:
        raise WireError("A Huffman message is shorter than its streams; resend it.")
    symbol_of = {(lengths[symbol], word): symbol for symbol, word in enumerate(code_words(lengths)) if lengths[symbol]}
    num_groups = -(-numel // group)
    values = torch.zeros(num_groups, dtype=torch.int64)
    for nth, stream in enumerate(torch.split(message[at:], sizes)):
        mine = values[nth::_STREAMS]
        mine.copy_(torch.tensor(_read_stream(stream, mine.numel(), symbol_of), dtype=torch.int64))
    symbols = (values.view(-1, 1) >> torch.arange(group) * bits & (1 << bits) - 1).view(-1).to(torch.uint8)
    if bool(symbols[numel:].any()):
        raise WireError("A Huffman message pads its last group with symbols; resend it.")
    return symbols[:numel]


def huffman_decode(message: Tensor, numel: int, bits: int) -> Tensor:  # [bytes] uint8 -> [numel] uint8
    """The symbols of a message; refuses every message that is not exactly `numel` of them."""
    expect_width(bits, 1)
    expect_message(message, numel)
    received = message.cpu()
    tag = int(received[0])
    if tag == STORED:
        symbols = unpack_symbols(received[1:], numel, bits)
    elif tag == CODED:
        symbols = _read_coded(received, numel, bits)
    elif tag == CONSTANT and received.numel() == 2 and int(received[1]) >> bits == 0:
        symbols = received[1:].repeat(numel)
    else:
        raise WireError(f"A Huffman message starts with an unknown tag {tag} or value; the sender uses another format.")
    return symbols.to(message.device)
