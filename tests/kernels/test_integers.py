"""Lanes of integers: the compiled kernel gives the reference's bits, and sums of lanes are lanes of sums."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from thinwire.errors import CodecError
from thinwire.kernels import integers, native
from thinwire.kernels.reference import integers as reference


def encoded(
    x: Tensor, bits: int, levels: int, lift: float, factor: float, key: int, base: int, ranks: int = 1
) -> Tensor:
    lanes = torch.empty(integers.lane_count(x.numel(), bits), dtype=torch.int32)
    integers.integers_encode(x, ranks, bits, levels, lift, factor, key, base, lanes)
    return lanes


@pytest.mark.parametrize("bits", range(2, 17))
def test_compiled_equals_reference(bits: int, variant: str) -> None:
    levels = max(1, (2 ** (bits - 1) - 1) // 3)
    for numel in (0, 1, 2, 7, 8, 31, 32, 33, 511, 1100):
        x = torch.randn(numel, generator=torch.Generator().manual_seed(numel)) * 3
        x[: numel // 4] = 0.0
        x[::5] *= 1e-41
        x[::7] = torch.tensor([-0.0, 3e38, float("inf"), float("-inf"), -5e9])[: len(x[::7])].repeat(200)[: len(x[::7])]
        for base in (0, 5, 2**32 - 3):
            how = (bits, levels, 1.0, levels / 4.0, 0x123456789ABCDEF, base)
            for ranks in (8, 3, 1):
                lanes = encoded(x, *how, ranks=ranks)
                assert torch.equal(lanes, reference.integers_encode(x / ranks, *how))
            for add in (False, True):
                ours, theirs = torch.ones(numel), torch.ones(numel)
                integers.integers_decode(lanes, bits, 1 / levels, 4.0, ours, add)
                reference.integers_decode(lanes, bits, 1 / levels, 4.0, theirs, add)
                assert torch.equal(ours, theirs)


@given(st.integers(2, 16), st.integers(1, 200), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_sums_of_lanes_are_lanes_of_sums(bits: int, numel: int, ranks: int) -> None:
    levels = (2 ** (bits - 1) - 1) // ranks
    if levels < 1:
        return
    generator = torch.Generator().manual_seed(numel)
    codes = [torch.randint(-levels, levels + 1, (numel,), generator=generator).float() for _ in range(ranks)]
    lanes = [encoded(c, bits, levels, 1.0, 1.0, 1, 0) for c in codes]
    alone = [decoded(each, bits, numel) for each in lanes]
    assert torch.equal(decoded(torch.stack(lanes).sum(0), bits, numel), torch.stack(alone).sum(0))
    # random rounding leaves whole numbers, but where a draw just below 1 is lost beside a large one in float32
    assert all(((c - a).abs() <= (1 if bits > 12 else 0)).all() for c, a in zip(codes, alone, strict=True))


def decoded(lanes: Tensor, bits: int, numel: int) -> Tensor:
    integers.integers_decode(lanes.to(torch.int32), bits, 1.0, 1.0, out := torch.empty(numel), False)
    return out


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("bits", [4, 8, 16])
def test_threads_change_nothing(bits: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    numel = 1_000_003
    x = torch.randn(numel, generator=torch.Generator().manual_seed(0))
    lanes, sums = reference.integers_encode(x, bits, 7, 1.0, 2.0, 9, 5), torch.ones(numel)
    reference.integers_decode(lanes, bits, 0.5, 3.0, sums, True)
    monkeypatch.setattr(native, "LEAST_SHARED", 0)
    torch.set_num_threads(threads)
    try:
        out = torch.ones(numel)
        assert torch.equal(encoded(x, bits, 7, 1.0, 2.0, 9, 5), lanes)
        integers.integers_decode(lanes, bits, 0.5, 3.0, out, True)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(out, sums)


def test_lanes_of_another_length_are_refused(variant: str) -> None:
    with pytest.raises(CodecError, match="do not fit"):
        integers.integers_decode(torch.zeros(3, dtype=torch.int32), 8, 1.0, 1.0, torch.zeros(13), False)
