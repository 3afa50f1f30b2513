import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.damage import agree, damaged
from thinwire.errors import CodecError, WireError
from thinwire.kernels import coders
from thinwire.kernels.reference import elias as reference

LENGTHS = [*range(36), 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 1000, 1024, 1099, 1100]


def signed(levels: Tensor, bits: int, g: torch.Generator) -> Tensor:
    signs = torch.randint(2, levels.shape, generator=g) * (levels > 0)
    return (levels + (signs << bits - 1)).to(torch.uint8)


def levelled(n: int, bits: int, density: float, slope: float, seed: int) -> Tensor:
    """Zeros but for `density` of the symbols, whose levels fall off geometrically."""
    g = torch.Generator().manual_seed(seed)
    if n == 0:
        return torch.empty(0, dtype=torch.uint8)
    weights = torch.exp(-slope * torch.arange(2 ** (bits - 1) - 1, dtype=torch.float64))
    levels = 1 + torch.multinomial(weights, n, replacement=True, generator=g)
    return signed(levels * (torch.rand(n, generator=g) < density), bits, g)


def qsgd(x: Tensor, levels: int, bits: int, g: torch.Generator) -> Tensor:
    """QSGD's stochastic levels of |x| / ||x||, papers' form: one bucket, L2 norm."""
    scaled = x.abs() / x.norm() * levels
    return signed((scaled + torch.rand(x.shape, generator=g)).floor().to(torch.int64), bits, g)


def check(symbols: Tensor, bits: int) -> Tensor:
    message = coders.elias_encode(symbols, bits)
    assert torch.equal(message, reference.elias_encode(symbols, bits))
    assert torch.equal(coders.elias_decode(message, symbols.numel(), bits), symbols)
    assert message.numel() <= 1 + (symbols.numel() * bits + 7) // 8
    return message


def test_omega_codes_and_lengths() -> None:
    known = {1: "0", 2: "100", 3: "110", 4: "101000", 7: "101110", 8: "1110000", 15: "1111110", 16: "10100100000"}
    for value, spelled in known.items():
        assert reference.elias_omega(value) == (int(spelled, 2), len(spelled))
    lengths = {1: 1, 2: 3, 3: 3, 4: 6, 7: 6, 8: 7, 15: 7, 16: 11, 31: 11, 32: 12, 63: 12, 64: 13, 127: 13}
    assert {value: coders.elias_omega_length(value) for value in lengths} == lengths
    with pytest.raises(CodecError, match="begin at 1"):
        coders.elias_omega_length(0)


@pytest.mark.parametrize("n", LENGTHS)
def test_native_writes_the_bytes_of_the_reference(n: int) -> None:
    for bits in (2, 4, 3 + n % 6):
        for density, slope in ((0.0, 0.0), (0.02, 0.5), (0.3, 2.0), (0.6, 5.0), (1.0, 0.0)):
            check(levelled(n, bits, density, slope, n), bits)


@pytest.mark.parametrize("bits", range(2, 9))
def test_every_width_round_trips_on_both_sides(bits: int) -> None:
    tags = set()
    for density, slope in ((0.02, 0.1), (0.1, 3.0), (0.7, 0.5), (0.9, 20.0), (0.6, 1.0)):
        symbols = levelled(2500, bits, density, slope, bits)
        message = check(symbols, bits)
        tags.add(int(message[0]))
        assert torch.equal(reference.elias_decode(message, 2500, bits), symbols)
    assert reference.SPARSE in tags


@given(st.data(), st.integers(2, 8))
def test_any_symbols_survive(data: st.DataObject, bits: int) -> None:
    legal = st.integers(0, 2**bits - 1).filter(lambda symbol: symbol != 1 << bits - 1)
    values = data.draw(st.lists(st.one_of(st.just(0), legal), max_size=200))
    check(torch.tensor(values, dtype=torch.uint8), bits)


def test_long_gaps_survive() -> None:
    symbols = torch.zeros(300_000, dtype=torch.uint8)
    symbols[[0, 1, 255, 256, 600, 5000, 4096 * 3, 299_999]] = torch.tensor(
        [1, 127, 129, 255, 64, 63, 8, 200], dtype=torch.uint8
    )
    message = check(symbols, 8)
    assert torch.equal(reference.elias_decode(message, 300_000, 8), symbols)


def test_dense_levels_above_the_table_survive() -> None:
    g = torch.Generator().manual_seed(4)
    levels = torch.zeros(20_000, dtype=torch.int64)
    levels[3::4] = 1  # the gap where omega is longest for its size: dense wins
    levels[3::36] = torch.randint(1, 128, (len(levels[3::36]),), generator=g)
    message = check(signed(levels, 8, g), 8)
    assert int(message[0]) == reference.DENSE


def test_golden_bytes() -> None:
    sparse = torch.zeros(100, dtype=torch.uint8)
    sparse[[1, 4]] = torch.tensor([3, 8 + 1], dtype=torch.uint8)
    # omega(2) = 100, sign 0, omega(3) = 110; omega(3) = 110, sign 1, omega(1) = 0
    assert check(sparse, 4).tolist() == [1, 2, 0, 0, 0, 0b10001101, 0b10100000]
    dense = torch.tensor([1, 8 + 1, 0, 1] * 8, dtype=torch.uint8)
    # omega(2) = 100 and a sign, omega(1) = 0
    bits = ("1000" + "1001" + "0" + "1000") * 8
    assert check(dense, 4).tolist() == [2, *(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8))]


@pytest.mark.parametrize(("n", "levels"), [(4096, 1), (4096, 4), (65536, 1)])
def test_sparse_length_obeys_the_bound_of_qsgd(n: int, levels: int) -> None:
    g = torch.Generator().manual_seed(n)
    bits = 2 if levels == 1 else 4
    sizes = [
        coders.elias_encode(qsgd(torch.randn(n, generator=g), levels, bits, g), bits).numel() * 8 for _ in range(10)
    ]
    support = levels * (levels + math.sqrt(n))
    bound = (3 + 1.5 * math.log2(2 * (levels**2 + n) / support)) * support + 32
    assert sum(sizes) / 10 <= bound


def test_dense_length_obeys_the_bound_of_qsgd() -> None:
    n = 4096
    g = torch.Generator().manual_seed(1)
    for _ in range(5):
        symbols = qsgd(torch.randn(n, generator=g), 64, 8, g)
        dense_bits = int(reference._dense_stream((symbols & 127).long(), (symbols >> 7).long()).numel())
        assert 2.5 * n < dense_bits <= 3.5 * n + 32
        assert coders.elias_encode(symbols, 8).numel() * 8 <= dense_bits + 16


def test_minus_zero_and_wide_symbols_are_refused() -> None:
    for encode in (coders.elias_encode, reference.elias_encode):
        with pytest.raises(CodecError, match="minus zero"):
            encode(torch.tensor([0, 8], dtype=torch.uint8), 4)
        with pytest.raises(CodecError, match="does not fit"):
            encode(torch.tensor([0, 16], dtype=torch.uint8), 4)
    with pytest.raises(CodecError, match="2 to 8 bits"):
        coders.elias_encode(torch.tensor([0], dtype=torch.uint8), 1)
    with pytest.raises(CodecError, match="2 to 8 bits"):
        coders.elias_decode(torch.tensor([0], dtype=torch.uint8), 1, 1)


@pytest.mark.parametrize(
    "message",
    [
        [],
        [3, 0, 0],
        [0, 0, 0, 0],
        [0, 0x80, 0],
        [0, 0, 0x10],
        [1, 0, 0],
        [1, 0, 0, 0, 0, 0],
        [1, 4, 0, 0, 0, 0, 0, 0],
        [1, 255, 255, 255, 255, 0, 0],
        [1, 1, 0, 0, 0, 0b10100000],
        [1, 1, 0, 0, 0, 0b00111000, 0],
        [1, 1, 0, 0, 0, 0b00000001],
        [1, 1, 0, 0, 0, *[255] * 20],
        [2, *[255] * 20],
        [2, 0b11100000],
        [2, 0, 0],
        [2, 0b00010000],
    ],
)
def test_malformed_messages_are_refused(message: list[int]) -> None:
    for decode in (coders.elias_decode, reference.elias_decode):
        with pytest.raises(WireError):
            decode(torch.tensor(message, dtype=torch.uint8), 3, 4)


def test_unaligned_messages_are_read() -> None:
    symbols = levelled(3000, 4, 0.1, 1.0, 2)
    message = coders.elias_encode(symbols, 4)
    for offset in range(8):
        shifted = torch.cat([torch.zeros(offset, dtype=torch.uint8), message])[offset:]
        assert torch.equal(coders.elias_decode(shifted, 3000, 4), symbols)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_damaged_messages_never_do_harm(bits: int) -> None:
    n = 150
    shapes = ((0.02, 0.1), (0.1, 3.0), (0.7, 0.5), (0.9, 20.0), (1.0, 0.0))
    messages = [coders.elias_encode(levelled(n, bits, density, slope, 1), bits) for density, slope in shapes]
    for message in damaged(messages, 3, seed=bits, rounds=600):
        found = agree(
            [lambda m: coders.elias_decode(m, n, bits), lambda m: reference.elias_decode(m, n, bits)], message
        )
        if found is not None:
            assert found.numel() == n
            assert int(found.max()) < 2**bits
            assert not bool((found == 1 << bits - 1).any())


def test_strided_views_are_coded_like_copies() -> None:
    symbols = levelled(600, 4, 0.3, 1.0, 2)
    message = coders.elias_encode(symbols[::2], 4)
    assert torch.equal(message, coders.elias_encode(symbols[::2].contiguous(), 4))
    strided = torch.stack([message, message], 1)[:, 0]
    assert torch.equal(coders.elias_decode(strided, 300, 4), symbols[::2])
