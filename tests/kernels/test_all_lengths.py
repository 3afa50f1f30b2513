"""Every length from 0 to 1,100: what the compiled kernels write and read is what the reference does."""

import pytest
import torch

from thinwire.kernels import coders, packing, sparse
from thinwire.kernels.quantise import Kind, Norm, Scheme
from thinwire.kernels.reference import huffman, indices
from thinwire.kernels.reference import packing as packing_reference
from thinwire.kernels.reference import quantise as reference
from thinwire.kernels.reference import sparse as sparse_reference

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
NUMBERS = torch.randn(1100, generator=torch.Generator().manual_seed(0)) ** 3
LENGTHS = range(1101)


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("kind", ["uniform", "exponential"])
def test_quantisers(kind: Kind, bits: int) -> None:
    norms: list[Norm] = ["max", "l2"]
    for numel in LENGTHS:
        x, bucket, norm = NUMBERS[:numel], (512, 100)[numel % 2], norms[numel // 2 % 2]
        scheme = Scheme(kind, bits, bucket, norm)
        symbols, scales = getattr(reference, f"{kind}_symbols")(x, bits, bucket, norm, 7, numel)
        message = torch.empty(scales.numel() + packing.packed_size(numel, bits), dtype=torch.uint8)
        scheme.encoder(x, 7, numel)(0, numel, message)
        assert torch.equal(message, torch.cat([scales, packing_reference.pack(symbols, bits)]))
        ours, theirs = torch.ones(numel), torch.ones(numel)
        scheme.decoder(ours, "add")(0, numel, message)
        getattr(reference, f"{kind}_dequantise")(symbols, scales, bits, bucket, theirs, True)
        assert torch.equal(ours, theirs)


def test_signs_and_selection() -> None:
    for numel in LENGTHS:
        x = NUMBERS[:numel]
        ours, theirs = Scheme("sign", 1, 100).symbols(x), reference.sign_symbols(x, 100)
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
