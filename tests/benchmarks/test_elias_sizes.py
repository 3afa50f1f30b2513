"""Elias-coded messages are as long as the theorems allow and as the library expects."""

from itertools import pairwise

import pytest
import torch

from benchmarks.elias_sizes import ONE_BUCKET, nuqsgd_bits, rows
from thinwire import Codec, simulate


def test_coded_sizes_stay_within_the_theorems() -> None:
    for chain, numel, measured, allowed, expected in rows((2**14, 2**18), draws=2):
        assert measured <= allowed, (chain, numel)
        # two single draws of a few hundred bytes differ by some per cent
        assert expected == pytest.approx(measured, rel=0.15), (chain, numel)


def test_a_bound_with_more_non_zeros_than_elements_says_nothing() -> None:
    assert nuqsgd_bits(2**10, 4) == float("inf")


@pytest.mark.parametrize("numel", [2**17, 2**18, 2**20])
def test_one_bucket_sends_what_wire_bytes_expects(numel: int) -> None:
    codec = Codec.parse(f"qsgd(bits=4, norm=l2, bucket={ONE_BUCKET}) | elias")
    gradients = [torch.randn(numel, generator=torch.Generator().manual_seed(rank)) for rank in range(4)]
    sent = simulate(codec, gradients, reduction="gathered").sent
    assert int(codec.wire_bytes(numel, 4, "gathered")) == pytest.approx(sum(sent) / 4, rel=0.05)


def test_lengths_beyond_the_sample_follow_the_square_root() -> None:
    codec = Codec.parse(f"qsgd(bits=4, norm=l2, bucket={ONE_BUCKET}) | elias")
    sizes = [int(codec.message_bytes(2**power)) for power in (22, 24, 26)]
    assert all(1.9 < b / a < 2.3 for a, b in pairwise(sizes))
