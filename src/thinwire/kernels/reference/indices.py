"""Sorted unique positions below numel as bytes, in the smallest of three forms.

The first byte says which:

    0  bitmap   ceil(numel/8) bytes; bit j of byte i stands for position 8i+j
    1  raw      each position as u32
    2  Rice     parameter k (u8), count (u32), then a low-first bit stream: for each position the number of skipped
                ones, gap-1, as (gap-1) >> k zeros, a one, and the k low bits of gap-1

Numbers of several bytes are little-endian. A decoder accepts any of the forms, whichever is smallest. k starts at
floor(log2(ln 2 / density)), the best one for a random support (R. F. Rice, 1979), and walks on while the stream
shrinks.
"""

import math

import torch
from torch import Tensor

from thinwire.errors import CodecError, WireError
from thinwire.kernels.reference.bitstream import (
    BitReader,
    expect_message,
    expect_room,
    little_endian,
    to_bits,
    to_bytes,
)

BITMAP, RAW, RICE = 0, 1, 2
_RICE_HEADER = 6
_MOST_RICE = 31


def _usual_rice(numel: int, count: int) -> int:
    k = 0
    while k < _MOST_RICE and (count << (k + 1)) * 10000 <= 6931 * numel:
        k += 1
    return k


def _best_rice(skipped: Tensor, numel: int) -> tuple[int, int]:
    """The parameter and its number of bits."""

    def size(k: int) -> int:
        return int((skipped >> k).sum()) + skipped.numel() * (k + 1)

    k = _usual_rice(numel, skipped.numel())
    for step in (-1, 1):
        start = k
        while 0 <= k + step <= _MOST_RICE and size(k + step) < size(k):
            k += step
        if k != start:
            break
    return k, size(k)


def _skipped(indices: Tensor) -> Tensor:
    """How many positions each one leaves out since the one before."""
    return indices - torch.nn.functional.pad(indices[:-1], (1, 0), value=-1)[: indices.numel()] - 1


def expect_positions(indices: Tensor, numel: int) -> None:
    """Positions come as a flat int64 tensor."""
    expect_room(numel)
    if indices.dtype != torch.int64 or indices.dim() != 1:
        raise CodecError(f"Positions must be a flat int64 tensor, not {indices.dtype} of {indices.dim()} dimensions.")


def _rice_stream(skipped: Tensor, k: int, total: int) -> Tensor:
    low = torch.arange(k)
    starts = ((skipped >> k) + k + 1).cumsum(0) - (k + 1)
    stream = torch.zeros(total, dtype=torch.int64)
    stream[starts] = 1
    stream[starts.view(-1, 1) + 1 + low] = skipped.view(-1, 1) >> low & 1
    return to_bytes(stream)


def pack_indices(indices: Tensor, numel: int) -> Tensor:  # [count] int64 -> [bytes] uint8
    """The positions in their smallest form; the lowest tag wins a tie."""
    expect_positions(indices, numel)
    positions = indices.cpu()
    skipped = _skipped(positions)
    if positions.numel() and (int(skipped.min()) < 0 or int(positions[-1]) >= numel):
        raise CodecError("Positions must be ascending, unique and below numel; sort them and remove duplicates.")
    count = positions.numel()
    k, bits = _best_rice(skipped, numel)
    sizes = [1 + (numel + 7) // 8, 1 + 4 * count, _RICE_HEADER + (bits + 7) // 8]
    tag = sizes.index(min(sizes))
    if tag == BITMAP:
        stream = torch.zeros(numel, dtype=torch.uint8)
        stream[positions] = 1
        body = to_bytes(stream)
    elif tag == RAW:
        body = (positions.view(-1, 1) >> torch.arange(0, 32, 8) & 255).to(torch.uint8).view(-1)
    else:
        rice = torch.tensor([k], dtype=torch.uint8)
        body = torch.cat([rice, little_endian(count), _rice_stream(skipped, k, bits)])
    return torch.cat([torch.tensor([tag], dtype=torch.uint8), body]).to(indices.device)


def _read_raw(body: Tensor) -> Tensor:
    if body.numel() % 4:
        raise WireError(f"Raw positions take four bytes each, and {body.numel()} is no multiple; resend the message.")
    positions = (body.to(torch.int64).view(-1, 4) << torch.arange(0, 32, 8)).sum(1)
    if bool((_skipped(positions) < 0).any()):
        raise WireError("Packed positions are not ascending; resend the message.")
    return positions


def _read_rice(body: Tensor, numel: int) -> Tensor:
    header = bytes(body[: _RICE_HEADER - 1].tolist())
    if len(header) < _RICE_HEADER - 1 or header[0] > _MOST_RICE:
        raise WireError("A Rice-coded message has no valid header; resend it.")
    k, count = header[0], int.from_bytes(header[1:], "little")
    if count > numel or count * (k + 1) > 8 * (body.numel() - len(header)):
        raise WireError(f"A Rice-coded message cannot hold the {count} positions it claims; resend it.")
    reader = BitReader(body[len(header) :])
    positions: list[int] = []
    last = -1
    for _ in range(count):
        last += 1 + (reader.take_zeros() << k) + reader.take(k)
        positions.append(last)
        if last >= numel:
            break
    else:
        reader.finish()
    return torch.tensor(positions, dtype=torch.int64)


def unpack_indices(message: Tensor, numel: int, count: int | None = None) -> Tensor:  # [bytes] uint8 -> [count] int64
    """The positions of a message; refuses what is not ascending, below numel, and `count` long if that is given."""
    expect_message(message, numel)
    received = message.cpu()
    tag, body = int(received[0]), received[1:]
    if tag == BITMAP:
        if body.numel() != (numel + 7) // 8:
            raise WireError(f"A bitmap of {numel} positions has the wrong length {body.numel()}; resend the message.")
        positions = to_bits(body).nonzero().view(-1)
    elif tag == RAW:
        positions = _read_raw(body)
    elif tag == RICE:
        positions = _read_rice(body, numel)
    else:
        raise WireError(f"A message of positions starts with the unknown tag {tag}; the sender uses another format.")
    if positions.numel() and int(positions[-1]) >= numel:
        raise WireError(f"A packed position lies outside the {numel} elements; resend the message.")
    expect_claimed(positions.numel(), count)
    return positions.to(message.device)


def expect_claimed(found: int, count: int | None) -> None:
    """A receiver that knows how many positions there are gets exactly those."""
    if count is not None and found != count:
        raise WireError(f"A message has {found} positions where {count} were expected; resend it.")


def packed_indices_bound(numel: int, count: int) -> int:
    """Bytes that no support of this size exceeds."""
    k = _usual_rice(numel, count)
    rice_bits = count * (k + 1) + ((numel - count) >> k)
    return min(1 + (numel + 7) // 8, 1 + 4 * count, _RICE_HEADER + (rice_bits + 7) // 8)


def expected_indices_size(numel: int, count: int) -> float:
    """Mean bytes for a uniformly random support.

    Skipped positions are nearly geometric with the mean (numel-count)/(count+1), so a Rice code of parameter k
    takes k + 1/(1-(1-p)^(2^k)) bits a position with p = (count+1)/(numel+1).
    """
    fixed = min(1 + (numel + 7) // 8, 1 + 4 * count)
    if count in (0, numel):
        return float(fixed)
    k = _usual_rice(numel, count)
    p = (count + 1) / (numel + 1)
    bits = min(j - 1 / math.expm1(2**j * math.log1p(-p)) for j in (max(k - 1, 0), k, k + 1))
    return min(float(fixed), _RICE_HEADER + (count * bits + 3.5) / 8)
