"""Frames: items on a connection, after a header that identifies them and protects them against damage.

A header is a sequence of unsigned 32-bit integers, little endian: the identity of the frame (integers that both ranks
know), the length of every item, the CRC-32 of the items, and the CRC-32 of the header up to here. The receiver knows
the identity and the number of items. It uses the lengths only if the header is intact.
"""

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from thinwire.core.ops import announced_lengths, checked_lengths
from thinwire.errors import WireError
from thinwire.kernels.checksum import crc32


class Header(NamedTuple):
    """The contents of a header that was checked."""

    lengths: list[int]
    checksum: int  # of the items

    def check_items(self, items: Sequence[Tensor], source: int) -> None:
        """Refuse items that differ from those that rank `source` sent."""
        if crc32(items) != self.checksum:
            raise WireError(
                f"a message of rank {source} arrived damaged: its checksum differs from what was sent;"
                " look for faulty memory or network hardware at that rank, at this one, and between them."
            )


def header_bytes(identity: tuple[int, ...], items: Sequence[Tensor]) -> bytes:
    lengths = checked_lengths([item.numel() for item in items])
    words = struct.pack(f"<{len(identity) + len(lengths) + 1}I", *identity, *lengths, crc32(items))
    return words + struct.pack("<I", zlib.crc32(words))


def header_size(identity: tuple[int, ...], count: int) -> int:
    """Bytes of the header of a frame of `count` items."""
    return 4 * (len(identity) + count + 2)


def read_header(
    header: bytearray, identity: tuple[int, ...], sizes: Sequence[int] | None, longest: Sequence[int], source: int
) -> Header:
    """The checked header of the frame that is due from rank `source`.

    `sizes`: bytes of the items, if they are known; `longest`: bytes that each can have at most.
    """
    *words, checksum, own = struct.unpack(f"<{len(header) // 4}I", header)
    if own != zlib.crc32(header[:-4]):
        raise WireError(
            f"rank {source} sent a header that is damaged or of another length than the one that is due; all ranks"
            " must average the same tensors with the same codecs, in the same order."
        )
    lengths = words[len(identity) :]
    for length, most in zip(lengths, longest, strict=True):
        announced_lengths([length], most, source)
    if tuple(words[: len(identity)]) != identity or lengths != list(lengths if sizes is None else sizes):
        raise WireError(
            f"rank {source} sent another message than the one that is due;"
            " all ranks must average the same tensors with the same codecs, in the same order."
        )
    return Header(lengths, checksum)
