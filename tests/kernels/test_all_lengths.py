"""Every length from 0 to 1,100: what the compiled kernels write and read is what the reference does."""

import pytest
import torch

from thinwire.kernels import coders, packing, quantise, sparse
from thinwire.kernels.reference import huffman, indices
from thinwire.kernels.reference import packing as packing_reference
from thinwire.kernels.reference import quantise as reference
from thinwire.kernels.reference import sparse as sparse_reference

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
NUMBERS = torch.randn(1100, generator=torch.Generator().manual_seed(0)) ** 3
LENGTHS = range(1101)


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("scheme", ["uniform", "exponential"])
def test_quantisers(scheme: str, bits: int) -> None:
    for numel in LENGTHS:
        x, bucket = NUMBERS[:numel], (512, 100)[numel % 2]
        args = (x, bits, bucket, ("max", "l2")[numel // 2 % 2], 7, numel)
        symbols, scales = getattr(reference, f"{scheme}_symbols")(*args)
        message = torch.empty(scales.numel() + packing.packed_size(numel, bits), dtype=torch.uint8)
        getattr(quantise, f"{scheme}_encoder")(*args)(0, numel, message)
        assert torch.equal(message, torch.cat([scales, packing_reference.pack(symbols, bits)]))
        ours, theirs = torch.ones(numel), torch.ones(numel)
        getattr(quantise, f"{scheme}_decoder")(bits, bucket, ours, True)(0, numel, message)
        getattr(reference, f"{scheme}_dequantise")(symbols, scales, bits, bucket, theirs, True)
        assert torch.equal(ours, theirs)


def test_signs_and_selection() -> None:
    for numel in LENGTHS:
        x = NUMBERS[:numel]
        ours, theirs = quantise.sign_symbols(x, 100), reference.sign_symbols(x, 100)
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])
        chosen = sparse.largest(x, numel // 7)
        assert torch.equal(chosen, sparse_reference.largest(x, numel // 7))
        assert torch.equal(coders.pack_indices(chosen, numel), indices.pack_indices(chosen, numel))


def test_entropy_coding() -> None:
    for numel in LENGTHS:
        symbols = (NUMBERS[:numel].abs() * 3).clamp(max=15).to(torch.uint8)
        message = coders.huffman_encode(symbols, 4)
        assert torch.equal(message, huffman.huffman_encode(symbols, 4))
        assert torch.equal(coders.huffman_decode(message, numel, 4), symbols)
