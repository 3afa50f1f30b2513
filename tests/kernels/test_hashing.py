"""Random bits by position."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from thinwire.kernels.reference.hashing import hash32, make_key, uniform24

M = 0xFFFFFFFF


def scalar_hash(key: int, position: int) -> int:
    """The definition in Python integers."""
    x = (position + key) & M
    x ^= x >> 16
    x = x * 0x7FEB352D & M
    x ^= x >> 15
    x ^= key >> 32
    x = x * 0x846CA68B & M
    return x ^ x >> 16


@given(key=st.integers(0, 2**64 - 1), base=st.integers(0, 2**40), n=st.integers(0, 40))
def test_hash_is_its_definition_at_every_position(key: int, base: int, n: int) -> None:
    assert hash32(key, base, n).tolist() == [scalar_hash(key, base + i) for i in range(n)]


@given(st.integers(0, 2**64 - 1), st.integers(0, 1000), st.integers(0, 100))
def test_a_piece_draws_what_the_whole_draws(key: int, start: int, n: int) -> None:
    assert torch.equal(hash32(key, 7, start + n)[start:], hash32(key, 7 + start, n))


def test_known_values_stay() -> None:
    assert hash32(0x0123456789ABCDEF, 5, 3).tolist() == [scalar_hash(0x0123456789ABCDEF, p) for p in (5, 6, 7)]
    assert make_key(0, 0, 0, 0) == make_key(0, 0, 0, 0) < 2**64


@given(st.tuples(*[st.integers(-(2**100), 2**100)] * 4), st.integers(0, 3), st.integers(1, 2**70))
@example((0, 0, -1, 0), 2, 2**64)  # the same 64 bits, but another sign
@example((-(2**63) - 1, 0, 0, 0), 0, 2**64)
def test_every_part_of_a_key_counts(parts: tuple[int, int, int, int], which: int, change: int) -> None:
    changed = list(parts)
    changed[which] += change
    key = make_key(*parts)
    assert 0 <= key < 2**64
    assert key != make_key(*changed)


def test_order_of_parts_counts() -> None:
    assert len({make_key(1, 2, 3, 4), make_key(2, 1, 3, 4), make_key(1, 2, 4, 3), make_key(4, 3, 2, 1)}) == 4


@pytest.mark.parametrize("stream", range(4))
def test_bits_are_balanced_and_uncorrelated_between_neighbours(stream: int) -> None:
    """2^16 draws: each bit's mean is within 5.5 sigma of 1/2, for 32 bits and 4 keys an error probability of 5e-6."""
    drawn = hash32(make_key(1, 2, 3, stream), 0, 2**16)
    for bit in range(32):
        ones = (drawn >> bit) & 1
        assert abs(ones.double().mean().item() - 0.5) < 5.5 * 0.5 / 256
        assert abs((ones[1:] ^ ones[:-1]).double().mean().item() - 0.5) < 5.5 * 0.5 / 256


def test_uniform_numbers_stay_below_one() -> None:
    assert uniform24(torch.tensor([0, 255, 256, M])).tolist() == [0.0, 0.0, 2.0**-24, 1 - 2.0**-24]
