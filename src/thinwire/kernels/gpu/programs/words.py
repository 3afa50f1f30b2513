"""Random bits, and words at any address."""

import triton
import triton.language as tl


@triton.jit
def hash32(position, key_low, key_high):
    """As `reference.hashing.hash32`, of uint32 positions."""
    x = position + key_low
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15) ^ key_high) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def uniform24(drawn):
    # below 2^24, so that the conversion from a signed number is the same, and one instruction
    return (drawn >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def load_word(at, mask, MASKED: tl.constexpr):
    """A little-endian word of any address, as int32."""
    word = tl.load(at, mask=mask, other=0).to(tl.int32) if MASKED else tl.load(at).to(tl.int32)
    for byte in tl.static_range(1, 4):
        part = tl.load(at + byte, mask=mask, other=0) if MASKED else tl.load(at + byte)
        word |= part.to(tl.int32) << (8 * byte)
    return word


@triton.jit
def store_word(at, word):
    quarter = tl.arange(0, 4)
    tl.store(at + quarter, ((word >> (quarter * 8)) & 255).to(tl.uint8))
