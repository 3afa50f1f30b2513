"""Laws of the stages of SparseLoCo and Streaming DiLoCo: top-k of chunks, codebooks, block floats, floats."""

import math
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import thinwire
from thinwire.kernels.coders import pack_indices

CHAIN = "feedback(decay=0.95) | topk(density=1/64, chunk=4096) | codebook(bits=2)"


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def passed(text: str, x: Tensor) -> Tensor:
    codec = thinwire.Codec.parse(text)
    return codec.decode(codec.encode(x), x.numel())


@given(st.integers(0, 700), st.integers(2, 90), st.floats(0.01, 1), st.integers(0, 999))
@settings(deadline=None)
def test_every_chunk_keeps_its_largest_numbers(numel: int, chunk: int, density: float, seed: int) -> None:
    x = drawn(numel, seed=seed)
    found = passed(f"topk(density={density}, chunk={chunk})", x)
    for low in range(0, numel, chunk):
        here = x[low : low + chunk]
        kept = math.ceil(density * here.numel())
        wanted = torch.zeros_like(here)
        top = here.abs().topk(kept).indices
        wanted[top] = here[top]
        assert torch.equal(found[low : low + chunk], wanted)


def test_a_chunk_as_long_as_the_tensor_is_no_chunk() -> None:
    x = drawn(1000)
    assert torch.equal(passed("topk(density=0.1, chunk=1000)", x), passed("topk(density=0.1)", x))
    assert torch.equal(passed("topk(density=0.1, chunk=4096)", x), passed("topk(density=0.1)", x))


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_shards_are_whole_chunks(ranks: int) -> None:
    given = [drawn(10_000, seed=rank) for rank in range(ranks)]
    outcome = thinwire.simulate("feedback(keep=off) | topk(density=1/64, chunk=512)", given, reduction="sharded")
    counts = [int((part != 0).sum()) for part in outcome.means[0].split(512)]
    assert max(counts) <= 8  # the sum of a shard is encoded once more, chunk by chunk


def test_positions_in_the_wrong_chunk_are_refused() -> None:
    codec = thinwire.Codec.parse("topk(density=1/4, chunk=8)")
    for positions in ([0, 1, 2, 9], [0, 8, 9, 10]):
        packed = bytes(pack_indices(torch.tensor(positions), 16).tolist())
        data = struct.pack("<I", len(packed)) + packed + bytes(16)
        with pytest.raises(thinwire.WireError, match="2 positions in every chunk"):
            codec.decode(torch.tensor(list(data), dtype=torch.uint8), 16)


def test_the_chain_of_sparseloco_is_more_than_210_times_smaller() -> None:
    """12 bits a position and 2 a value are 146 times less than fp32; coded gaps need about 7.5 bits."""
    numel = 4096 * 256
    message = thinwire.Codec.parse(CHAIN).encode(drawn(numel))
    ratio = 4 * numel / message.numel()
    assert 210 < ratio < 219  # 218.7: the entropy of 64 of 4,096 and 2 bits


@given(st.integers(1, 600), st.integers(2, 8), st.floats(0.5, 20), st.integers(0, 999))
@settings(deadline=None)
def test_a_codebook_keeps_the_mean_and_never_adds_energy(numel: int, bits: int, sigmas: float, seed: int) -> None:
    x = drawn(numel, seed=seed) ** 3
    found = passed(f"codebook(bits={bits}, sigmas={sigmas})", x)
    scale = float(x.abs().max())
    assert abs(float(found.double().mean() - x.double().mean())) <= 1e-6 * scale
    assert float((found - x).double().square().sum()) <= float((x - x.mean()).double().square().sum()) * 1.0001 + 1e-12


def test_more_bits_of_a_codebook_lose_less() -> None:
    x = drawn(50_000)
    losses = [float((passed(f"codebook(bits={bits})", x) - x).square().mean()) for bits in range(2, 9)]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] < 0.2
    assert losses[-1] < 1e-3


@pytest.mark.parametrize("levels", [[1.0, 2.0, math.inf, 3.0], [math.nan, 1.0, 2.0, 3.0]])
def test_levels_that_no_encoder_writes_are_refused(levels: list[float]) -> None:
    data = struct.pack("<4f", *levels) + bytes(2)
    with pytest.raises(thinwire.WireError, match="no encoder writes"):
        thinwire.Codec.parse("codebook(bits=2)").decode(torch.tensor(list(data), dtype=torch.uint8), 8)


@given(st.integers(1, 500), st.sampled_from([(4, 1), (6, 3), (8, 3)]), st.integers(0, 999))
@settings(deadline=None)
def test_block_floats_are_near(numel: int, form: tuple[int, int], seed: int) -> None:
    """Half a step of the largest number of the block, or a quarter of it where numbers are cut off."""
    bits, mantissa = form
    x = drawn(numel, seed=seed) * 10.0 ** (seed % 20 - 10)
    found = passed(f"mx(bits={bits})", x)
    for low in range(0, numel, 32):
        largest = float(x[low : low + 32].abs().max())
        bound = max(2.0 ** -(mantissa + 1), {4: 0.25, 6: 1 / 16, 8: 0.125}[bits])
        assert float((found - x)[low : low + 32].abs().max()) <= bound * largest


def test_block_floats_take_a_quarter_of_a_bit_more_than_their_bits() -> None:
    for bits in (4, 6, 8):
        assert thinwire.Codec.parse(f"mx(bits={bits})").message_bytes(1 << 16) == (1 << 16) // 8 * bits + (1 << 11)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("mx(bits=5)", "4, 6 or 8"),
        ("mx(bits=3)", "from 4 to 8"),
        ("codebook(bits=1)", "from 2 to 8"),
        ("codebook(sigmas=0)", "from 0.1 to 100"),
        ("topk(density=0.1, chunk=1)", "from 2"),
        ("float(type=fp8)", "one of bf16, fp16"),
        ("mx | codebook", "cannot follow"),
    ],
)
def test_bad_options_are_refused(text: str, rule: str) -> None:
    with pytest.raises(thinwire.CodecError, match=rule):
        thinwire.Codec.parse(text)


def test_floats_by_messages_round_the_sum_once() -> None:
    """1/256 is lost when it is added to 1 in bf16; in fp32 it is not."""
    given = [torch.full((64,), 4.0), *(torch.full((64,), 4 / 256) for _ in range(3))]
    exact = torch.stack(given).mean(0)
    by_messages = thinwire.simulate("float(type=bf16)", given, reduction="sharded").means[0]
    assert torch.equal(by_messages, exact.to(torch.bfloat16).float())
    assert torch.equal(thinwire.simulate("float(type=bf16)", given, reduction="gathered").means[0], exact)
    by_backend = thinwire.simulate("bf16", given).means[0]
    assert (by_backend - exact).abs().max() > (by_messages - exact).abs().max()
