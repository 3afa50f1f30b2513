"""The bucketed quantisers: compiled against reference bit for bit, unbiasedness, special values, refusals."""

import random

import pytest
import torch
from torch import Tensor

from tests.kernels.numbers import same
from thinwire.errors import CodecError, WireError
from thinwire.kernels import native, packing, quantise
from thinwire.kernels.reference import quantise as reference
from thinwire.kernels.reference.hashing import make_key

EDGES = [0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 63, 64, 65, 99, 100, 101, 511, 512, 513, 1000, 1023, 1024, 1025, 1100]
BUCKETS = [1, 3, 64, 100, 512, 1000, 8192]
TABLES = {
    2: [0, 1],
    3: [0, 0.1, 0.5, 1],
    4: [0, 1e-3, 0.02, 0.3, 0.31, 0.9, 1],
    8: [(i / 127) ** 2 for i in range(128)],
}
SIGNED = [(s, b) for s in ("uniform", "exponential") for b in range(2, 9)] + [("levels", b) for b in TABLES]
SCHEMES = [*SIGNED, ("sign", 1)]
ROUNDED = [("uniform", 2), ("uniform", 4), ("uniform", 8), ("exponential", 3), ("exponential", 4), ("levels", 4)]


def extra(scheme: str, bits: int) -> tuple[Tensor, ...]:
    return (torch.tensor(TABLES[bits]).float(),) if scheme == "levels" else ()


def tail(scheme: str, bits: int, bucket: int) -> tuple[object, ...]:
    """Options that the decoders take after their data."""
    return (bucket,) if scheme == "sign" else (*extra(scheme, bits), bits, bucket)


def options(scheme: str, bits: int, bucket: int, norm: str, key: int, base: int) -> tuple[object, ...]:
    """Options that the encoders take after x."""
    return (bucket,) if scheme == "sign" else (*extra(scheme, bits), bits, bucket, norm, key, base)


def sample(n: int, rng: random.Random) -> Tensor:
    """n floats of one of the kinds that have broken quantisers before."""
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    x = torch.randn(n, generator=generator)
    kind = rng.randrange(12)
    if kind == 1:
        x = x * 1e-42
    elif kind == 2:
        x = (x * 1e38).clamp(-3.4e38, 3.4e38)
    elif kind == 3:
        x = x * torch.pow(10.0, torch.rand(n, generator=generator) * 80 - 45).clamp(max=1e37)
    elif kind == 4:
        x = torch.zeros(n)
    elif kind == 5:
        x = torch.where(torch.rand(n, generator=generator) < 0.5, 0.0, -0.0)
    elif kind == 6:
        x = torch.full((n,), -0.3)
    elif kind == 7:
        x = x.abs() * 1e-33
    elif n and kind in (8, 9, 10):
        x[rng.randrange(n)] = {8: float("inf"), 9: float("-nan"), 10: -3.4028234663852886e38}[kind]
    elif n and kind == 11:
        x = torch.zeros(n)
        x[rng.randrange(n)] = -2.5e-40
    return x


def lengths(rng: random.Random) -> list[int]:
    return rng.sample(EDGES, 6) + [rng.randrange(1101) for _ in range(3)]


def unaligned(size: int) -> Tensor:
    """A byte buffer at an odd address, filled with noise."""
    return torch.randint(0, 256, (size + 1,)).to(torch.uint8)[1:]


@pytest.mark.parametrize(("scheme", "bits"), SCHEMES)
def test_compiled_encoders_equal_reference(scheme: str, bits: int, variant: str) -> None:
    rng = random.Random(f"{scheme}{bits}")
    for bucket in BUCKETS:
        for n in lengths(rng):
            x = sample(n, rng)
            norm, key, base = rng.choice(["max", "l2"]), rng.getrandbits(64), rng.choice([0, 2**32 - 9])
            given = options(scheme, bits, bucket, norm, key, base)
            symbols, scales = getattr(reference, f"{scheme}_symbols")(x, *given)
            found, found_scales = getattr(quantise, f"{scheme}_symbols")(x, *given)
            assert torch.equal(found_scales, scales), (bucket, n, given)
            assert torch.equal(found, symbols), (bucket, n, given)
            message = unaligned(scales.numel() + packing.packed_size(n, bits))
            getattr(quantise, f"{scheme}_encoder")(x, *given)(0, n, message)
            assert torch.equal(message, torch.cat([scales, packing.pack(symbols, bits)])), (bucket, n, given)


@pytest.mark.parametrize(("scheme", "bits"), SCHEMES)
def test_compiled_decoders_equal_reference(scheme: str, bits: int, variant: str) -> None:
    """Any bytes are decoded alike, those of our encoders and noise."""
    rng = random.Random(f"{scheme}{bits}")
    for bucket in BUCKETS:
        for n in lengths(rng):
            x = sample(n, rng)
            symbols, scales = getattr(quantise, f"{scheme}_symbols")(x, *options(scheme, bits, bucket, "max", 3, 0))
            if rng.random() < 0.3:
                symbols, scales = torch.randint(0, 2**bits, (n,)).to(torch.uint8), unaligned(scales.numel())
            message = torch.cat([scales, packing.pack(symbols, bits)])
            message = unaligned(message.numel()).copy_(message)
            for add in (False, True):
                expected, plain, fused = (torch.linspace(-1, 1, n) for _ in range(3))
                getattr(reference, f"{scheme}_dequantise")(symbols, scales, *tail(scheme, bits, bucket), expected, add)
                getattr(quantise, f"{scheme}_dequantise")(symbols, scales, *tail(scheme, bits, bucket), plain, add)
                getattr(quantise, f"{scheme}_decoder")(*tail(scheme, bits, bucket), fused, add)(0, n, message)
                assert same(plain, expected), (bucket, n, add)
                assert same(fused, expected), (bucket, n, add)
                opposite = scales.clone().view(torch.float32).neg().view(torch.uint8)
                taken_off, expected = torch.linspace(-1, 1, n), torch.linspace(-1, 1, n)
                given = tail(scheme, bits, bucket)
                getattr(quantise, f"{scheme}_decoder")(*given, taken_off, add, negated=True)(0, n, message)
                getattr(reference, f"{scheme}_dequantise")(symbols, opposite, *given, expected, add)
                assert same(taken_off, expected), (bucket, n, add)


@pytest.mark.parametrize("bucket", [513, 1024, 5000, 262_144, 300_000, 2**40])
def test_sums_of_long_buckets_equal_reference(bucket: int, variant: str) -> None:
    x = torch.randn(300_001, generator=torch.Generator().manual_seed(bucket % 1000))
    for name, given in (("uniform", (4, bucket, "l2", 9, 0)), ("sign", (bucket,))):
        symbols, scales = getattr(quantise, f"{name}_symbols")(x, *given)
        expected, expected_scales = getattr(reference, f"{name}_symbols")(x, *given)
        assert torch.equal(scales, expected_scales)
        assert torch.equal(symbols, expected)
    assert same(quantise.clip_to_sigma(x, bucket, 1.5), reference.clip_to_sigma(x, bucket, 1.5))


@pytest.mark.parametrize("bucket", BUCKETS)
def test_compiled_clipping_equals_reference(bucket: int, variant: str) -> None:
    rng = random.Random(bucket)
    for n in EDGES:
        x = sample(n, rng)
        assert same(quantise.clip_to_sigma(x, bucket, 2.5), reference.clip_to_sigma(x, bucket, 2.5)), n


def decoded(scheme: str, bits: int, bucket: int, norm: str, x: Tensor, key: int) -> Tensor:
    symbols, scales = getattr(quantise, f"{scheme}_symbols")(x, *options(scheme, bits, bucket, norm, key, 0))
    out = torch.empty_like(x)
    getattr(quantise, f"{scheme}_dequantise")(symbols, scales, *tail(scheme, bits, bucket), out, False)
    return out


@pytest.mark.parametrize("norm", ["max", "l2"])
@pytest.mark.parametrize(("scheme", "bits"), ROUNDED)
def test_rounding_is_unbiased(scheme: str, bits: int, norm: str) -> None:
    """4,000 draws: |z| < 5.5 at each of 256 coordinates and for their sum; error probability below 2e-4 in 12 cases.

    Coordinates with fewer than 40 changes are too rare for a normal z; they count in the sum alone.
    """
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(256, generator=generator) * torch.pow(10.0, torch.rand(256, generator=generator) * 2 - 2)
    x[64:192] = 0
    x[130] = -7.0
    draws = torch.stack([decoded(scheme, bits, 64, norm, x, make_key(0, step, 0, 0)) for step in range(4000)]).double()
    bias = draws.mean(0) - x.double()
    rare = (draws != draws.mode(0).values).sum(0) < 40
    z = (bias / (draws.std(0) / 4000**0.5))[~rare]
    assert z.numel() > 60
    assert z.abs().max() < 5.5
    assert bias.sum().abs() < 5.5 * (draws.var(0).sum() / 4000).sqrt()
    assert torch.equal(draws[0, 64:192].abs() > 0, x[64:192].abs() > 0)


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("scale", [1.0, 3e38, 1e-30, 1e-38, 1e-44, 0.3])
def test_top_level_is_the_scale_exactly(bits: int, scale: float) -> None:
    x = torch.tensor([scale, -scale, 0.0])
    for scheme in ("uniform", "exponential"):
        assert torch.equal(decoded(scheme, bits, 3, "max", x, 1).abs(), x.abs())


@pytest.mark.parametrize(("scheme", "bits"), SIGNED)
def test_grid_points_survive(scheme: str, bits: int) -> None:
    """Decoded values decode to themselves."""
    x = decoded(scheme, bits, 64, "max", torch.randn(640, generator=torch.Generator().manual_seed(0)), 5)
    again = decoded(scheme, bits, 64, "max", x, 6)
    assert torch.equal(again, x)


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize(("scheme", "bits"), [("uniform", 4), ("exponential", 4), ("levels", 4), ("sign", 1)])
@pytest.mark.parametrize("norm", ["max", "l2"])
def test_a_bucket_that_is_not_finite_decodes_to_nan(scheme: str, bits: int, norm: str, bad: float) -> None:
    x = torch.ones(12)
    x[5] = bad
    symbols, scales = getattr(quantise, f"{scheme}_symbols")(x, *options(scheme, bits, 4, norm, 0, 0))
    words = scales.view(torch.int32)
    assert words[len(words) // 3].item() == 0x7FC00000
    assert not symbols[4:8].any()
    out = decoded(scheme, bits, 4, norm, x, 0)
    assert out[4:8].isnan().all()
    assert out[:4].isfinite().all()
    assert out[8:].isfinite().all()


def test_norm_near_the_largest_float_is_capped() -> None:
    x = torch.full((64,), 3e38)
    scales = reference.bucket_scales(x, 64, "l2")
    assert scales.item() == torch.finfo(torch.float32).max
    assert decoded("uniform", 8, 64, "l2", x, 0).isfinite().all()


def test_pieces_round_like_the_whole() -> None:
    x = torch.randn(1024, generator=torch.Generator().manual_seed(3))
    whole, _ = quantise.uniform_symbols(x, 4, 128, "max", 77, 1000)
    pieces = [quantise.uniform_symbols(x[a : a + 256], 4, 128, "max", 77, 1000 + a)[0] for a in range(0, 1024, 256)]
    assert torch.equal(torch.cat(pieces), whole)


def test_keys_and_positions_wrap_around() -> None:
    x = torch.randn(100, generator=torch.Generator().manual_seed(3))
    given, _ = quantise.uniform_symbols(x, 4, 128, "max", -1, 2**40 + 5)
    wrapped, _ = quantise.uniform_symbols(x, 4, 128, "max", 2**64 - 1, 5)
    assert torch.equal(given, wrapped)


def test_sign_means_minimise_the_error() -> None:
    x = torch.randn(50, generator=torch.Generator().manual_seed(0))
    symbols, scales = quantise.sign_symbols(x, 50)
    below, above = scales.view(torch.float32).tolist()
    assert above == pytest.approx(x[x >= 0].double().mean().item(), rel=1e-6)
    assert below == pytest.approx(x[x < 0].double().mean().item(), rel=1e-6)
    assert torch.equal(symbols.bool(), x >= 0)
    _, scales = quantise.sign_symbols(torch.tensor([-1.0, -3.0]), 2)
    assert scales.view(torch.float32).tolist() == [-2.0, 0.0]


def test_two_bits_have_three_values() -> None:
    """TernGrad, clipped and not."""
    x = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    out = torch.empty_like(x)
    sigma = x.view(8, 512).square().mean(1).sqrt()
    for given, largest in (
        (x, x.view(8, 512).abs().amax(1)),
        (quantise.clip_to_sigma(x, 512, 2.5), 2.5 * sigma),
    ):
        message = torch.empty(32 + 1024, dtype=torch.uint8)
        quantise.uniform_encoder(given, 2, 512, "max", 4, 0)(0, given.numel(), message)
        quantise.uniform_decoder(2, 512, out, False)(0, out.numel(), message)
        assert torch.allclose(out.view(8, 512).abs().amax(1), largest)
        assert all(len(row.unique()) <= 3 for row in out.view(8, 512))


def test_data_that_are_not_contiguous_use_the_reference() -> None:
    x = torch.randn(200, generator=torch.Generator().manual_seed(0))
    symbols, scales = quantise.uniform_symbols(x[::2], 4, 64, "max", 1, 0)
    expected, expected_scales = quantise.uniform_symbols(x[::2].contiguous(), 4, 64, "max", 1, 0)
    assert torch.equal(symbols, expected)
    assert torch.equal(scales, expected_scales)


def test_wrong_options_are_refused() -> None:
    x = torch.zeros(8)
    with pytest.raises(CodecError, match="2 to 8 bits, not 9"):
        quantise.uniform_symbols(x, 9, 4, "max", 0, 0)
    with pytest.raises(CodecError, match="at least one element"):
        quantise.sign_symbols(x, 0)
    with pytest.raises(CodecError, match="'max' or 'l2'"):
        quantise.uniform_symbols(x, 4, 4, "l1", 0, 0)  # type: ignore[arg-type]
    with pytest.raises(CodecError, match="float32 vectors"):
        quantise.uniform_symbols(x.double(), 4, 4, "max", 0, 0)
    for table in ([0.0], [0.1, 1.0], [0.0, 0.5], [0.0, 0.5, 0.5, 1.0], [0.0, 0.2, 0.4, 0.8, 1.0]):
        with pytest.raises(CodecError, match="rising from 0 to 1"):
            quantise.levels_symbols(x, torch.tensor(table), 3, 4, "max", 0, 0)


def test_buffers_of_a_wrong_size_are_refused() -> None:
    x, out = torch.zeros(100), torch.zeros(100)
    message = torch.zeros(28 + 52, dtype=torch.uint8)
    quantise.uniform_encoder(x, 4, 16, "max", 0, 0)(0, x.numel(), message)
    for wrong in (message[1:], message[:0], torch.cat([message, message[:1]]), message.float()):
        with pytest.raises(WireError, match="another codec"):
            quantise.uniform_encoder(x, 4, 16, "max", 0, 0)(0, x.numel(), wrong)
        with pytest.raises(WireError, match="another codec"):
            quantise.uniform_decoder(4, 16, out, True)(0, out.numel(), wrong)
    with pytest.raises(WireError, match="another codec"):
        quantise.uniform_dequantise(message, message[1:], 4, 16, out, True)
    with pytest.raises(WireError, match="as many symbols"):
        quantise.uniform_dequantise(message, message[:28], 4, 16, out, True)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("scheme", "bits"), [("uniform", 4), ("uniform", 3), ("exponential", 5), ("sign", 1)])
def test_threads_change_nothing(scheme: str, bits: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales, packed codes and sums of long data, also where the last bucket is short or a bucket is most of it."""
    monkeypatch.setattr(native, "LEAST_SHARED", 0)
    n = 200_001
    x = torch.randn(n, generator=torch.Generator().manual_seed(bits))
    for bucket in (3, 100, 512, 8192, 99_840, 150_000, 2**40):
        given = options(scheme, bits, bucket, "l2", 7, 11)
        symbols, scales = getattr(reference, f"{scheme}_symbols")(x, *given)
        expected = torch.ones(n)
        getattr(reference, f"{scheme}_dequantise")(symbols, scales, *tail(scheme, bits, bucket), expected, True)
        message = unaligned(scales.numel() + packing.packed_size(n, bits))
        torch.set_num_threads(threads)
        try:
            found, found_scales = getattr(quantise, f"{scheme}_symbols")(x, *given)
            getattr(quantise, f"{scheme}_encoder")(x, *given)(0, n, message)
            plain, fused = torch.ones(n), torch.ones(n)
            getattr(quantise, f"{scheme}_dequantise")(symbols, scales, *tail(scheme, bits, bucket), plain, True)
            getattr(quantise, f"{scheme}_decoder")(*tail(scheme, bits, bucket), fused, True)(0, n, message)
        finally:
            torch.set_num_threads(1)
        assert torch.equal(found, symbols)
        assert torch.equal(found_scales, scales)
        assert torch.equal(message, torch.cat([scales, packing.pack(symbols, bits)]))
        assert torch.equal(plain, expected)
        assert torch.equal(fused, expected)


@pytest.mark.parametrize(("scheme", "bits"), SCHEMES)
def test_ranges_are_those_of_the_whole(scheme: str, bits: int, variant: str) -> None:
    """A range's message is that of its numbers at their positions, and is read into its place alone."""
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    encode = getattr(quantise, f"{scheme}_encoder")(x, *options(scheme, bits, 64, "max", 5, 7))
    for low, high in ((0, 1000), (0, 1), (64, 300), (333, 1000), (1000, 1000)):
        n, given = high - low, options(scheme, bits, 64, "max", 5, 7 + low)
        size = getattr(quantise, f"{scheme}_symbols")(x[low:high], *given)[1].numel() + packing.packed_size(n, bits)
        ranged, alone = (torch.empty(size, dtype=torch.uint8) for _ in range(2))
        encode(low, high, ranged)
        getattr(quantise, f"{scheme}_encoder")(x[low:high].clone(), *given)(0, n, alone)
        assert torch.equal(ranged, alone)
        out, part = torch.ones(1000), torch.ones(n)
        getattr(quantise, f"{scheme}_decoder")(*tail(scheme, bits, 64), out, True)(low, high, ranged)
        getattr(quantise, f"{scheme}_decoder")(*tail(scheme, bits, 64), part, True)(0, n, alone)
        assert same(out[low:high], part)
        assert bool((torch.cat([out[:low], out[high:]]) == 1).all())


@pytest.mark.parametrize(("low", "high"), [(-1, 4), (3, 2), (5, 11)])
def test_ranges_lie_among_the_numbers(low: int, high: int) -> None:
    message = torch.empty(64, dtype=torch.uint8)
    with pytest.raises(CodecError, match="not among 10"):
        quantise.uniform_encoder(torch.zeros(10), 4, 16, "max", 0, 0)(low, high, message)
    with pytest.raises(CodecError, match="not among 10"):
        quantise.uniform_decoder(4, 16, torch.zeros(10), True)(low, high, message)
