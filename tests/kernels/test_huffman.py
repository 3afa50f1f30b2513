import heapq
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.damage import agree, damaged
from thinwire.errors import CodecError, WireError
from thinwire.kernels import coders
from thinwire.kernels.reference import huffman as reference

LENGTHS = [*range(36), 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 1000, 1024, 1099, 1100]


def skewed(n: int, bits: int, slope: float, seed: int) -> Tensor:
    """Symbols with geometric probabilities; slope 0 is flat."""
    weights = torch.exp(-slope * torch.arange(2**bits, dtype=torch.float64))
    g = torch.Generator().manual_seed(seed)
    if n == 0:
        return torch.empty(0, dtype=torch.uint8)
    symbols: Tensor = torch.multinomial(weights, n, replacement=True, generator=g).to(torch.uint8)
    return symbols


def quantised(n: int, bits: int, seed: int) -> Tensor:
    """QSGD symbols of Gaussian data in buckets of 512, scaled by their maximum."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(-(-n // 512), 512, generator=g)
    sign = 1 << bits - 1
    most = sign - 1
    levels = (x.abs() / x.abs().amax(1, keepdim=True) * most + torch.rand(x.shape, generator=g)).floor().clamp(max=most)
    return (levels + sign * ((x < 0) & (levels > 0))).to(torch.uint8).view(-1)[:n].clone()


def entropy(symbols: Tensor) -> float:
    p = torch.bincount(symbols.to(torch.int64)).double() / symbols.numel()
    return float(torch.special.entr(p).sum() / math.log(2))


def check(symbols: Tensor, bits: int) -> Tensor:
    message = coders.huffman_encode(symbols, bits)
    assert torch.equal(message, reference.huffman_encode(symbols, bits))
    assert torch.equal(coders.huffman_decode(message, symbols.numel(), bits), symbols)
    assert message.numel() <= 1 + (symbols.numel() * bits + 7) // 8
    return message


@pytest.mark.parametrize("n", LENGTHS)
def test_native_writes_the_bytes_of_the_reference(n: int) -> None:
    for bits in (1 + n % 4, 4, 5 + n % 4):
        for slope in (0.0, 0.4, 3.0):
            check(skewed(n, bits, slope, n), bits)


@pytest.mark.parametrize("bits", range(1, 9))
def test_every_width_round_trips_on_both_sides(bits: int) -> None:
    for n in (100, 3001):
        for slope in (0.05, 0.7, 2.0):
            symbols = skewed(n, bits, slope, bits)
            message = check(symbols, bits)
            assert torch.equal(reference.huffman_decode(message, n, bits), symbols)


@given(st.data(), st.integers(1, 8))
def test_any_symbols_survive(data: st.DataObject, bits: int) -> None:
    values = data.draw(st.lists(st.integers(0, 2**bits - 1), max_size=200))
    repeated = values * data.draw(st.integers(1, 4))
    check(torch.tensor(repeated, dtype=torch.uint8), bits)


@pytest.mark.parametrize("bits", [1, 2, 4, 7])
def test_long_messages_are_equal_on_both_sides(bits: int) -> None:
    message = check(skewed(70_001, bits, 0.6, 3), bits)
    assert int(message[0]) == reference.CODED


def test_probabilities_beyond_the_longest_code_are_coded() -> None:
    fibonacci = [1, 1]
    while len(fibonacci) < 20:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    lengths = reference.code_lengths(fibonacci)
    assert max(lengths) == 12
    assert sum(2.0**-length for length in lengths) == 1
    symbols = torch.repeat_interleave(torch.arange(20, dtype=torch.uint8), torch.tensor(fibonacci))
    check(symbols[torch.randperm(len(symbols), generator=torch.Generator().manual_seed(0))], 5)


def test_code_lengths_are_optimal_where_the_limit_does_not_bind() -> None:
    counts = torch.randint(1, 100, (60,), generator=torch.Generator().manual_seed(0)).tolist()
    cost = sum(c * length for c, length in zip(counts, reference.code_lengths(counts), strict=True))
    merged, heap = 0, sorted(counts)
    while len(heap) > 1:
        pair = heapq.heappop(heap) + heapq.heappop(heap)
        merged += pair
        heapq.heappush(heap, pair)
    assert cost == merged


@pytest.mark.parametrize("n", [4096, 65536, 1 << 20])
def test_size_is_within_two_percent_of_the_entropy(n: int) -> None:
    symbols = quantised(n, 4, 1)
    message = coders.huffman_encode(symbols, 4)
    header = 2 + 128 + 12
    assert message.numel() <= 1.02 * entropy(symbols) * n / 8 + header
    if n >= 65536:
        assert message.numel() <= 1.02 * entropy(symbols) * n / 8


def test_symbols_may_cost_less_than_a_bit() -> None:
    symbols = skewed(1 << 16, 2, 5.0, 1)
    assert coders.huffman_encode(symbols, 2).numel() * 8 < 0.3 * symbols.numel()


def test_constant_and_empty_tensors_are_tiny() -> None:
    assert check(torch.full((1000,), 5, dtype=torch.uint8), 3).tolist() == [2, 5]
    assert check(torch.empty(0, dtype=torch.uint8), 3).tolist() == [0]
    assert check(torch.tensor([5], dtype=torch.uint8), 3).tolist() == [0, 5]


def test_golden_bytes() -> None:
    symbols = torch.tensor([0] * 30 + [1] * 6 + [9] * 3 + [2], dtype=torch.uint8)[torch.arange(40) * 27 % 40]
    # coded singly | lengths 1 2 3, 6 zeros, 3, 6 zeros | sizes 2 2 2 | streams
    assert bytes(check(symbols, 4).tolist()).hex(" ", 2) == "01 0121 d333 3d02 0202 1007 8818 441c 1007"


def test_flat_symbols_are_stored() -> None:
    symbols = skewed(5000, 3, 0.0, 1)
    assert int(check(symbols, 3)[0]) == reference.STORED


@pytest.mark.parametrize("bits", [0, 9])
def test_impossible_widths_are_refused(bits: int) -> None:
    with pytest.raises(CodecError, match="1 to 8 bits"):
        coders.huffman_encode(torch.zeros(3, dtype=torch.uint8), bits)
    with pytest.raises(CodecError, match="1 to 8 bits"):
        coders.huffman_decode(torch.zeros(3, dtype=torch.uint8), 3, bits)


def test_symbols_that_do_not_fit_are_refused() -> None:
    for encode in (coders.huffman_encode, reference.huffman_encode):
        with pytest.raises(CodecError, match="does not fit"):
            encode(torch.tensor([1, 4], dtype=torch.uint8), 2)
    with pytest.raises(CodecError, match="uint8"):
        coders.huffman_encode(torch.tensor([1, 4]), 3)


def test_another_length_is_refused() -> None:
    symbols = skewed(4000, 4, 0.5, 2)
    message = coders.huffman_encode(symbols, 4)
    for decode in (coders.huffman_decode, reference.huffman_decode):
        for n in (3990, 4010):
            with pytest.raises(WireError):
                decode(message, n, 4)


def test_unaligned_messages_are_read() -> None:
    symbols = skewed(3000, 4, 0.5, 2)
    message = coders.huffman_encode(symbols, 4)
    for offset in range(8):
        shifted = torch.cat([torch.zeros(offset, dtype=torch.uint8), message])[offset:]
        assert torch.equal(coders.huffman_decode(shifted, 3000, 4), symbols)


@pytest.mark.parametrize(("n", "bits"), [(61, 2), (130, 4), (130, 6)])
def test_damaged_messages_never_do_harm(n: int, bits: int) -> None:
    messages = [coders.huffman_encode(skewed(n, bits, slope, 1), bits) for slope in (0.0, 0.5, 1.0, 1.5, 50.0)]
    for message in damaged(messages, 3, seed=bits, rounds=600):
        found = agree(
            [lambda m: coders.huffman_decode(m, n, bits), lambda m: reference.huffman_decode(m, n, bits)], message
        )
        if found is not None:
            assert found.numel() == n
            assert int(found.max()) < 2**bits


def test_strided_views_are_coded_like_copies() -> None:
    symbols = skewed(600, 4, 0.8, 2)
    message = coders.huffman_encode(symbols[::2], 4)
    assert torch.equal(message, coders.huffman_encode(symbols[::2].contiguous(), 4))
    strided = torch.stack([message, message], 1)[:, 0]
    assert torch.equal(coders.huffman_decode(strided, 300, 4), symbols[::2])
