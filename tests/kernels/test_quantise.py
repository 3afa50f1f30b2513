"""The bucketed quantisers: compiled against reference bit for bit, unbiasedness, special values, refusals."""

import random
from functools import partial

import pytest
import torch
from torch import Tensor

from tests.kernels.numbers import same
from tests.kernels.schemes import SCHEMES, SIGNED, expect_decoded, expected_symbols, scheme_of, unaligned
from thinwire.errors import CodecError, WireError
from thinwire.kernels import native, packing, quantise
from thinwire.kernels.modes import Mode
from thinwire.kernels.quantise import Kind, Norm, Scheme
from thinwire.kernels.reference import quantise as reference
from thinwire.kernels.reference.hashing import make_key

EDGES = [0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 63, 64, 65, 99, 100, 101, 511, 512, 513, 1000, 1023, 1024, 1025, 1100]
BUCKETS = [1, 3, 64, 100, 512, 1000, 8192]
NORMS: list[Norm] = ["max", "l2"]
MODES: list[Mode] = ["write", "add", "subtract"]
ROUNDED = [("uniform", 2), ("uniform", 4), ("uniform", 8), ("exponential", 3), ("exponential", 4), ("levels", 4)]


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


@pytest.mark.parametrize(("kind", "bits"), SCHEMES)
def test_compiled_encoders_equal_reference(kind: Kind, bits: int, variant: str) -> None:
    rng = random.Random(f"{kind}{bits}")
    for bucket in BUCKETS:
        for n in lengths(rng):
            x = sample(n, rng)
            norm, key, base = rng.choice(NORMS), rng.getrandbits(64), rng.choice([0, 2**32 - 9])
            scheme, given = scheme_of(kind, bits, bucket, norm), (bucket, n, norm, key, base)
            symbols, scales = expected_symbols(scheme, x, key, base)
            found, found_scales = scheme.symbols(x, key, base)
            assert torch.equal(found_scales, scales), given
            assert torch.equal(found, symbols), given
            assert scheme.scale_bytes(n) == scales.numel()
            message = unaligned(scales.numel() + packing.packed_size(n, bits))
            scheme.encoder(x, key, base)(0, n, message)
            assert torch.equal(message, torch.cat([scales, packing.pack(symbols, bits)])), given


@pytest.mark.parametrize(("kind", "bits"), SCHEMES)
def test_compiled_decoders_equal_reference(kind: Kind, bits: int, variant: str) -> None:
    """Any bytes are decoded alike, those of our encoders and noise."""
    rng = random.Random(f"{kind}{bits}")
    for bucket in BUCKETS:
        for n in lengths(rng):
            x, scheme = sample(n, rng), scheme_of(kind, bits, bucket)
            symbols, scales = scheme.symbols(x, 3)
            if rng.random() < 0.3:
                symbols, scales = torch.randint(0, 2**bits, (n,)).to(torch.uint8), unaligned(scales.numel())
            message = torch.cat([scales, packing.pack(symbols, bits)])
            message = unaligned(message.numel()).copy_(message)
            for mode in MODES:
                expected, plain, fused = (torch.linspace(-1, 1, n) for _ in range(3))
                expect_decoded(scheme, symbols, scales, expected, mode)
                scheme.dequantise(symbols, scales, plain, mode)
                scheme.decoder(fused, mode)(0, n, message)
                assert same(plain, expected), (bucket, n, mode)
                assert same(fused, expected), (bucket, n, mode)


@pytest.mark.parametrize("bucket", [513, 1024, 5000, 262_144, 300_000, 2**40])
def test_sums_of_long_buckets_equal_reference(bucket: int, variant: str) -> None:
    x = torch.randn(300_001, generator=torch.Generator().manual_seed(bucket % 1000))
    for scheme in (Scheme("uniform", 4, bucket, "l2"), Scheme("sign", 1, bucket)):
        symbols, scales = scheme.symbols(x, 9)
        expected, expected_scales = expected_symbols(scheme, x, 9, 0)
        assert torch.equal(scales, expected_scales)
        assert torch.equal(symbols, expected)
    assert same(quantise.clip_to_sigma(x, bucket, 1.5), reference.clip_to_sigma(x, bucket, 1.5))


@pytest.mark.parametrize("bucket", BUCKETS)
def test_compiled_clipping_equals_reference(bucket: int, variant: str) -> None:
    rng = random.Random(bucket)
    for n in EDGES:
        x = sample(n, rng)
        assert same(quantise.clip_to_sigma(x, bucket, 2.5), reference.clip_to_sigma(x, bucket, 2.5)), n


def decoded(scheme: Scheme, x: Tensor, key: int) -> Tensor:
    symbols, scales = scheme.symbols(x, key)
    out = torch.empty_like(x)
    scheme.dequantise(symbols, scales, out)
    return out


@pytest.mark.parametrize("norm", ["max", "l2"])
@pytest.mark.parametrize(("kind", "bits"), ROUNDED)
def test_rounding_is_unbiased(kind: Kind, bits: int, norm: Norm) -> None:
    """4,000 draws: |z| < 5.5 at each of 256 coordinates and for their sum; error probability below 2e-4 in 12 cases.

    Coordinates with fewer than 40 changes are too rare for a normal z; they count in the sum alone.
    """
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(256, generator=generator) * torch.pow(10.0, torch.rand(256, generator=generator) * 2 - 2)
    x[64:192] = 0
    x[130] = -7.0
    scheme = scheme_of(kind, bits, 64, norm)
    draws = torch.stack([decoded(scheme, x, make_key(0, step, 0, 0)) for step in range(4000)]).double()
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
    for scheme in (Scheme("uniform", bits, 3), Scheme("exponential", bits, 3)):
        assert torch.equal(decoded(scheme, x, 1).abs(), x.abs())


@pytest.mark.parametrize(("kind", "bits"), SIGNED)
def test_grid_points_survive(kind: Kind, bits: int) -> None:
    """Decoded values decode to themselves."""
    scheme = scheme_of(kind, bits, 64)
    x = decoded(scheme, torch.randn(640, generator=torch.Generator().manual_seed(0)), 5)
    again = decoded(scheme, x, 6)
    assert torch.equal(again, x)


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize(("kind", "bits"), [("uniform", 4), ("exponential", 4), ("levels", 4), ("sign", 1)])
@pytest.mark.parametrize("norm", ["max", "l2"])
def test_a_bucket_that_is_not_finite_decodes_to_nan(kind: Kind, bits: int, norm: Norm, bad: float) -> None:
    x, scheme = torch.ones(12), scheme_of(kind, bits, 4, norm)
    x[5] = bad
    symbols, scales = scheme.symbols(x)
    words = scales.view(torch.int32)
    assert words[len(words) // 3].item() == 0x7FC00000
    assert not symbols[4:8].any()
    out = decoded(scheme, x, 0)
    assert out[4:8].isnan().all()
    assert out[:4].isfinite().all()
    assert out[8:].isfinite().all()


def test_norm_near_the_largest_float_is_capped() -> None:
    x = torch.full((64,), 3e38)
    scales = reference.bucket_scales(x, 64, "l2")
    assert scales.item() == torch.finfo(torch.float32).max
    assert decoded(Scheme("uniform", 8, 64, "l2"), x, 0).isfinite().all()


def test_pieces_round_like_the_whole() -> None:
    x = torch.randn(1024, generator=torch.Generator().manual_seed(3))
    scheme = Scheme("uniform", 4, 128)
    whole, _ = scheme.symbols(x, 77, 1000)
    pieces = [scheme.symbols(x[a : a + 256], 77, 1000 + a)[0] for a in range(0, 1024, 256)]
    assert torch.equal(torch.cat(pieces), whole)


def test_keys_and_positions_wrap_around() -> None:
    x = torch.randn(100, generator=torch.Generator().manual_seed(3))
    scheme = Scheme("uniform", 4, 128)
    given, _ = scheme.symbols(x, -1, 2**40 + 5)
    wrapped, _ = scheme.symbols(x, 2**64 - 1, 5)
    assert torch.equal(given, wrapped)


def test_sign_means_minimise_the_error() -> None:
    x = torch.randn(50, generator=torch.Generator().manual_seed(0))
    symbols, scales = Scheme("sign", 1, 50).symbols(x)
    below, above = scales.view(torch.float32).tolist()
    assert above == pytest.approx(x[x >= 0].double().mean().item(), rel=1e-6)
    assert below == pytest.approx(x[x < 0].double().mean().item(), rel=1e-6)
    assert torch.equal(symbols.bool(), x >= 0)
    _, scales = Scheme("sign", 1, 2).symbols(torch.tensor([-1.0, -3.0]))
    assert scales.view(torch.float32).tolist() == [-2.0, 0.0]


def test_two_bits_have_three_values() -> None:
    """TernGrad, clipped and not."""
    x = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    out, scheme = torch.empty_like(x), Scheme("uniform", 2, 512)
    sigma = x.view(8, 512).square().mean(1).sqrt()
    for given, largest in (
        (x, x.view(8, 512).abs().amax(1)),
        (quantise.clip_to_sigma(x, 512, 2.5), 2.5 * sigma),
    ):
        message = torch.empty(32 + 1024, dtype=torch.uint8)
        scheme.encoder(given, 4)(0, given.numel(), message)
        scheme.decoder(out)(0, out.numel(), message)
        assert torch.allclose(out.view(8, 512).abs().amax(1), largest)
        assert all(len(row.unique()) <= 3 for row in out.view(8, 512))


def test_data_that_are_not_contiguous_use_the_reference() -> None:
    x = torch.randn(200, generator=torch.Generator().manual_seed(0))
    scheme = Scheme("uniform", 4, 64)
    symbols, scales = scheme.symbols(x[::2], 1)
    expected, expected_scales = scheme.symbols(x[::2].contiguous(), 1)
    assert torch.equal(symbols, expected)
    assert torch.equal(scales, expected_scales)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(CodecError, match="2 to 8 bits, not 9"):
        Scheme("uniform", 9, 4)
    with pytest.raises(CodecError, match="at least one element"):
        Scheme("sign", 1, 0)
    with pytest.raises(CodecError, match="'max' or 'l2'"):
        Scheme("uniform", 4, 4, "l1")  # type: ignore[arg-type]
    for table in ([0.0], [0.1, 1.0], [0.0, 0.5], [0.0, 0.5, 0.5, 1.0], [0.0, 0.2, 0.4, 0.8, 1.0]):
        with pytest.raises(CodecError, match="rising from 0 to 1"):
            Scheme("levels", 3, 4, levels=torch.tensor(table))


def test_elements_of_another_type_or_shape_are_refused() -> None:
    scheme = Scheme("uniform", 4, 4)
    symbols, scales = scheme.symbols(torch.zeros(8))
    for wrong in (torch.zeros(8).double(), torch.zeros(2, 4)):
        for use in (scheme.symbols, scheme.encoder, scheme.decoder, partial(scheme.dequantise, symbols, scales)):
            with pytest.raises(CodecError, match="float32 vectors"):
                use(wrong)


def test_buffers_of_a_wrong_size_are_refused() -> None:
    x, out, scheme = torch.zeros(100), torch.zeros(100), Scheme("uniform", 4, 16)
    message = torch.zeros(28 + 52, dtype=torch.uint8)
    scheme.encoder(x)(0, x.numel(), message)
    for wrong in (message[1:], message[:0], torch.cat([message, message[:1]]), message.float()):
        with pytest.raises(WireError, match="another codec"):
            scheme.encoder(x)(0, x.numel(), wrong)
        with pytest.raises(WireError, match="another codec"):
            scheme.decoder(out, "add")(0, out.numel(), wrong)
    with pytest.raises(WireError, match="another codec"):
        scheme.dequantise(message, message[1:], out, "add")
    with pytest.raises(WireError, match="as many symbols"):
        scheme.dequantise(message, message[:28], out, "add")


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("kind", "bits"), [("uniform", 4), ("uniform", 3), ("exponential", 5), ("sign", 1)])
def test_threads_change_nothing(kind: Kind, bits: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales, packed codes and sums of long data, also where the last bucket is short or a bucket is most of it."""
    monkeypatch.setattr(native, "LEAST_SHARED", 0)
    n = 200_001
    x = torch.randn(n, generator=torch.Generator().manual_seed(bits))
    for bucket in (3, 100, 512, 8192, 99_840, 150_000, 2**40):
        scheme = scheme_of(kind, bits, bucket, "l2")
        symbols, scales = expected_symbols(scheme, x, 7, 11)
        expected = torch.ones(n)
        expect_decoded(scheme, symbols, scales, expected, "add")
        message = unaligned(scales.numel() + packing.packed_size(n, bits))
        torch.set_num_threads(threads)
        try:
            found, found_scales = scheme.symbols(x, 7, 11)
            scheme.encoder(x, 7, 11)(0, n, message)
            plain, fused = torch.ones(n), torch.ones(n)
            scheme.dequantise(symbols, scales, plain, "add")
            scheme.decoder(fused, "add")(0, n, message)
        finally:
            torch.set_num_threads(1)
        assert torch.equal(found, symbols)
        assert torch.equal(found_scales, scales)
        assert torch.equal(message, torch.cat([scales, packing.pack(symbols, bits)]))
        assert torch.equal(plain, expected)
        assert torch.equal(fused, expected)


@pytest.mark.parametrize(("kind", "bits"), SCHEMES)
def test_ranges_are_those_of_the_whole(kind: Kind, bits: int, variant: str) -> None:
    """A range's message is that of its numbers at their positions, and is read into its place alone."""
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    scheme = scheme_of(kind, bits, 64)
    encode = scheme.encoder(x, 5, 7)
    for low, high in ((0, 1000), (0, 1), (64, 300), (333, 1000), (1000, 1000)):
        n = high - low
        size = scheme.symbols(x[low:high], 5, 7 + low)[1].numel() + packing.packed_size(n, bits)
        ranged, alone = (torch.empty(size, dtype=torch.uint8) for _ in range(2))
        encode(low, high, ranged)
        scheme.encoder(x[low:high].clone(), 5, 7 + low)(0, n, alone)
        assert torch.equal(ranged, alone)
        out, part = torch.ones(1000), torch.ones(n)
        scheme.decoder(out, "add")(low, high, ranged)
        scheme.decoder(part, "add")(0, n, alone)
        assert same(out[low:high], part)
        assert bool((torch.cat([out[:low], out[high:]]) == 1).all())


@pytest.mark.parametrize(("low", "high"), [(-1, 4), (3, 2), (5, 11)])
def test_ranges_lie_among_the_numbers(low: int, high: int) -> None:
    message, scheme = torch.empty(64, dtype=torch.uint8), Scheme("uniform", 4, 16)
    with pytest.raises(CodecError, match="not among 10"):
        scheme.encoder(torch.zeros(10))(low, high, message)
    with pytest.raises(CodecError, match="not among 10"):
        scheme.decoder(torch.zeros(10), "add")(low, high, message)
