"""Every implementation of the checksum gives zlib's value."""

import random
import zlib
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from thinwire.kernels import checksum
from thinwire.kernels.checksum import crc32
from thinwire.kernels.native import NATIVE

LENGTHS = [*range(600), 1023, 1024, 4096, 65_535, 65_536, 200_003]


@pytest.fixture(params=["wide", "narrow", "standard library"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "standard library":
        monkeypatch.setattr(checksum, "_COMPILED", None)
        yield request.param
        return
    if NATIVE is None or not NATIVE.use_crc32(request.param == "wide"):
        pytest.skip(f"this machine has no {request.param} instructions for it")
    yield request.param
    NATIVE.use_crc32(True)


def random_bytes(length: int, seed: int) -> Tensor:
    data = bytearray(random.Random(seed).randbytes(length + 1))
    return torch.frombuffer(data, dtype=torch.uint8)[1:]  # not at an aligned address


def test_one_part_has_the_value_of_the_standard_library(implementation: str) -> None:
    for length in LENGTHS:
        part = random_bytes(length, length)
        assert crc32([part]) == zlib.crc32(part.numpy().tobytes()), length


def test_several_parts_have_the_value_of_one(implementation: str) -> None:
    part = random_bytes(5000, 1)
    for cuts in ([0], [1, 2, 3], [64, 700, 4000], [4999]):
        bounds = [0, *cuts, 5000]
        pieces = [part[a:b] for a, b in pairwise(bounds)]
        assert crc32(pieces) == zlib.crc32(part.numpy().tobytes())
    assert crc32([]) == 0


def test_every_flipped_bit_is_found(implementation: str) -> None:
    part = random_bytes(700, 2)
    expected = crc32([part])
    for at in range(700):
        for bit in range(8):
            part[at] ^= 1 << bit
            assert crc32([part]) != expected
            part[at] ^= 1 << bit
    assert crc32([part]) == expected
