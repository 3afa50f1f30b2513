"""Self-contained messages: into memory that is given, their sizes foretold."""

import pytest
import torch

from thinwire import Codec
from thinwire.errors import CodecError

CHAINS = [
    "none",
    "fp16",
    "qsgd(bits=4)",
    "nuqsgd(bits=3)",
    "sign",
    "rangefloat(bits=6)",
    "fft | qsgd",
]


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("numel", [1, 511, 5000])
def test_a_message_in_given_memory_has_the_same_bytes(chain: str, numel: int) -> None:
    codec = Codec.parse(chain)
    x = torch.randn(numel, generator=torch.Generator().manual_seed(numel))
    out = torch.full((int(codec.message_bytes(numel)),), 77, dtype=torch.uint8)
    assert codec.message_bytes(numel).exact
    assert codec.encode(x, out=out, seed=3, step=2, rank=1) is out
    assert torch.equal(out, codec.encode(x, seed=3, step=2, rank=1))


def test_memory_of_another_size_is_refused() -> None:
    codec, x = Codec.parse("qsgd(bits=4)"), torch.zeros(1000)
    size = int(codec.message_bytes(1000))
    for wrong in (
        torch.empty(size - 1, dtype=torch.uint8),
        torch.empty(size),
        torch.empty(2 * size, dtype=torch.uint8)[::2],
    ):
        with pytest.raises(CodecError, match=f"tensor of {size} bytes"):
            codec.encode(x, out=wrong)


def test_messages_whose_size_varies_take_no_memory() -> None:
    codec = Codec.parse("qsgd(bits=4) | huffman")
    assert not codec.message_bytes(1000).exact
    with pytest.raises(CodecError, match="vary in size"):
        codec.encode(torch.zeros(1000), out=torch.empty(600, dtype=torch.uint8))


def test_chains_that_must_agree_make_no_message() -> None:
    with pytest.raises(CodecError, match="agree first"):
        Codec.parse("integers").message_bytes(10)
