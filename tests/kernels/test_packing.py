"""Small symbols in bytes: the layout, the round trip, and the compiled form against the reference."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinwire.errors import CodecError, WireError
from thinwire.kernels import packing
from thinwire.kernels.reference import packing as reference

WIDTHS = range(1, 17)
EDGES = [0, 1, 7, 8, 9, 15, 16, 17, 63, 64, 65, 255, 256, 257, 504, 505, 511, 512, 513, 520, 1023, 1024, 1025, 1100]


def draw(numel: int, bits: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed * 100_003 + numel * 17 + bits)
    return torch.randint(0, 2**bits, (numel,), generator=generator).to(reference.symbol_dtype(bits))


def packed_by_hand(symbols: list[int], bits: int) -> list[int]:
    """The format, written once more with Python integers and bit positions."""
    widths = {1: [1], 3: [2, 1], 7: [4, 2, 1], 10: [8, 2], 13: [8, 4, 1], 16: [8, 8]}[bits]
    data: list[int] = []
    for start in range(0, len(symbols), 512):
        block = symbols[start : start + 512]
        block += [0] * (-len(block) % 8)
        offset = 0
        for width in widths:
            stride = len(block) * width // 8
            plane = [0] * stride
            for at, symbol in enumerate(block):
                plane[at % stride] |= (symbol >> offset & (1 << width) - 1) << (at // stride * width)
            data += plane
            offset += width
    return data


@pytest.mark.parametrize("bits", [1, 3, 7, 10, 13, 16])
@pytest.mark.parametrize("numel", [0, 1, 9, 300, 512, 1030])
def test_layout(bits: int, numel: int) -> None:
    symbols = draw(numel, bits)
    assert reference.pack(symbols, bits).tolist() == packed_by_hand(symbols.tolist(), bits)


@given(numel=st.integers(0, 1100), bits=st.sampled_from(WIDTHS), seed=st.integers(0, 5))
def test_round_trip(numel: int, bits: int, seed: int) -> None:
    symbols = draw(numel, bits, seed)
    packed = packing.pack(symbols, bits)
    assert packed.numel() == packing.packed_size(numel, bits)
    assert torch.equal(packing.unpack(packed, numel, bits), symbols)
    assert torch.equal(reference.unpack(packed, numel, bits), symbols)


@pytest.mark.parametrize("bits", WIDTHS)
def test_compiled_equals_reference(bits: int, variant: str) -> None:
    for numel in EDGES:
        symbols = draw(numel, bits)
        packed = packing.pack(symbols, bits)
        assert torch.equal(packed, reference.pack(symbols, bits)), numel
        noise = torch.randint(0, 256, (packed.numel() + 1,)).to(torch.uint8)[1:]
        assert torch.equal(packing.unpack(noise, numel, bits), reference.unpack(noise, numel, bits)), numel


@pytest.mark.parametrize("bits", [1, 5, 9])
@pytest.mark.parametrize("change", [-1, 1])
def test_wrong_length_is_refused(bits: int, change: int) -> None:
    data = torch.zeros(packing.packed_size(20, bits) + change, dtype=torch.uint8)
    for unpack in (packing.unpack, reference.unpack):
        with pytest.raises(WireError, match="20 symbols"):
            unpack(data, 20, bits)


def test_wrong_width_and_type_are_refused() -> None:
    with pytest.raises(CodecError, match="1 to 16 bits, not 17"):
        packing.packed_size(8, 17)
    with pytest.raises(CodecError, match="1 to 16 bits, not 0"):
        packing.pack(torch.zeros(8, dtype=torch.uint8), 0)
    with pytest.raises(CodecError, match="convert them first"):
        packing.pack(torch.zeros(8, dtype=torch.int32), 4)


def test_a_view_that_is_not_contiguous_packs_alike() -> None:
    symbols = draw(600, 4)
    assert torch.equal(packing.pack(symbols[::2], 4), packing.pack(symbols[::2].contiguous(), 4))
