"""Shorter floats: the compiled casts give torch's bits for every number, at any address, on any number of threads."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.numbers import any_bits, same
from thinwire import Codec
from thinwire.errors import CodecError, WireError
from thinwire.kernels import casts, native
from thinwire.kernels.reference import casts as reference

DTYPES = [torch.float16, torch.bfloat16]
LENGTHS = [*range(40), 63, 64, 65, 511, 512, 1023, 1100]
LONG = 200_001


def buffer(numel: int, shift: int) -> Tensor:
    """Room for numel short floats, `shift` bytes behind an aligned address."""
    return torch.zeros(2 * numel + shift, dtype=torch.uint8)[shift:]


def as_numbers(message: Tensor, dtype: torch.dtype) -> Tensor:
    return message.clone().view(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shift", [0, 1, 2])
def test_shortening_is_torchs(dtype: torch.dtype, shift: int, variant: str) -> None:
    for n in LENGTHS:
        x, message = any_bits(n, n), buffer(n, shift)
        casts.cast_into(x, dtype, message)
        assert same(as_numbers(message, dtype), x.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_short_float_and_both_its_neighbours_round_right(dtype: torch.dtype, variant: str) -> None:
    """All 65,536 values, the float32 next to them, and the ties between them with their own neighbours."""
    short = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    values = short.float()
    ties = ((values.double() + short.view(torch.int16).add(1).view(dtype).double()) / 2).float()
    for base in (values, ties):
        for step in (-1, 0, 1):
            x = (base.view(torch.int32) + step).view(torch.float32)
            message = buffer(x.numel(), 0)
            casts.cast_into(x, dtype, message)
            assert same(as_numbers(message, dtype), x.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_short_float_is_read_as_torch_reads_it(dtype: torch.dtype, variant: str) -> None:
    short = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    for n in (2**16, 2**16 - 3):
        for shift in (0, 1):
            message = buffer(n, shift).copy_(short[:n].view(torch.uint8))
            values, held = short[:n].view(dtype).float(), any_bits(n, 5)
            for add in (False, True):
                out, expected = held.clone(), held + values if add else values
                casts.cast_from(message, dtype, out, add)
                assert same(out, expected)


def test_all_sets_of_loops_keep_the_same_nan(variant: str) -> None:
    """Payloads lose their lower bits; a signalling NaN becomes a quiet one."""
    x = torch.tensor([0x7F800001, 0x7FC00000, -1, 0x7FABCDEF] * 5, dtype=torch.int32).view(torch.float32)
    message = buffer(20, 0)
    casts.cast_into(x, torch.float16, message)
    assert message.view(torch.int16)[:4].tolist() == [0x7E00, 0x7E00, -1, 0x7F5E]
    assert torch.equal(message.view(-1, 8), message[:8].expand(5, 8))
    casts.cast_into(x, torch.bfloat16, message)
    assert message.view(torch.int16)[:4].tolist() == [0x7FC0, 0x7FC0, -1, 0x7FEB]
    assert torch.equal(message.view(-1, 8), message[:8].expand(5, 8))


@given(st.integers(0, 300), st.integers(0, 2**31), st.sampled_from(DTYPES), st.integers(0, 2))
def test_the_reference_agrees(n: int, seed: int, dtype: torch.dtype, shift: int) -> None:
    x, ours, theirs = any_bits(n, seed), buffer(n, shift), buffer(n, shift)
    casts.cast_into(x, dtype, ours)
    reference.cast_into(x, dtype, theirs)
    assert same(as_numbers(ours, dtype), as_numbers(theirs, dtype))
    for add in (False, True):
        ours_out, theirs_out = x.clone(), x.clone()
        casts.cast_from(ours, dtype, ours_out, add)
        reference.cast_from(ours, dtype, theirs_out, add)
        assert same(ours_out, theirs_out)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_nothing(dtype: torch.dtype, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, held = any_bits(LONG, 1), any_bits(LONG, 2)
    expected = x.to(dtype)
    total = held + expected
    monkeypatch.setattr(native, "LEAST_SHARED", 0)
    torch.set_num_threads(threads)
    try:
        message = buffer(LONG, 1)
        casts.cast_into(x, dtype, message)
        casts.cast_from(message, dtype, held, True)
    finally:
        torch.set_num_threads(1)
    assert same(as_numbers(message, dtype), expected)
    assert same(held, total)


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_a_large_message_is_that_of_torch(name: str) -> None:
    """Above 4 MiB the buffer is announced to the system before it is filled."""
    x = torch.randn(2_500_000, generator=torch.Generator().manual_seed(0))
    dtype = torch.float16 if name == "fp16" else torch.bfloat16
    assert torch.equal(Codec.parse(name).encode(x).view(dtype), x.to(dtype))


def test_wrong_buffers_are_refused() -> None:
    x = torch.zeros(4)
    with pytest.raises(WireError, match="8 bytes"):
        casts.cast_into(x, torch.float16, buffer(3, 0))
    with pytest.raises(WireError, match="8 bytes"):
        casts.cast_from(torch.zeros(8), torch.float16, x, True)
    with pytest.raises(CodecError, match="float32 vectors"):
        casts.cast_into(x.double(), torch.float16, buffer(4, 0))
    with pytest.raises(CodecError, match="float16 or bfloat16"):
        casts.cast_into(x, torch.float64, buffer(4, 0))
