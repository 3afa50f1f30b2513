"""The compiled kernels of quantisers, run by the emulator, give the bits of the reference."""

import pytest
import torch

from tests.gpu import cases
from tests.gpu.cases import TABLE, any_message, check_decoder, check_encoder, special
from tests.gpu.emulation import emulated, reference
from thinwire.kernels.modes import Mode
from thinwire.kernels.packing import packed_size
from thinwire.kernels.quantise import Kind, Norm, Scheme
from thinwire.kernels.reference.hashing import make_key

QUICK = {
    "qsgd": Scheme("uniform", 4, 512),
    "short l2 buckets": Scheme("exponential", 3, 100, "l2"),
    "sign": Scheme("sign", 1, 512),
}
LENGTHS = (0, 1, 7, 8, 9, 63, 100, 511, 512, 513, 1000, 1531)
TARGETS = [{"capability": 80}, {"capability": 89}, {"capability": 90}, {"num_warps": 4}]
KEY = make_key(3, 7, 1, 5)


def all_schemes() -> list[Scheme]:
    kinds: list[Kind] = ["uniform", "exponential"]
    norms: list[Norm] = ["max", "l2"]
    found = [Scheme(kind, bits, 512, norm) for kind in kinds for bits in range(2, 9) for norm in norms]
    found += [Scheme(kind, 4, bucket, "l2") for kind in kinds for bucket in (1, 33, 64, 511, 1024, 1536, 5000)]
    found += [Scheme("levels", bits, bucket, "l2", TABLE) for bits in (4, 5) for bucket in (100, 512, 1024)]
    return found + [Scheme("sign", 1, bucket) for bucket in (1, 33, 512, 1024, 5000)]


@pytest.mark.parametrize("name", QUICK)
def test_every_length_has_the_bits_of_the_reference(name: str) -> None:
    scheme, g = QUICK[name], torch.Generator().manual_seed(0)
    for n in LENGTHS:
        message = check_encoder(scheme, torch.randn(n, generator=g), KEY, n * 977)
        check_decoder(scheme, message, n, "add")


@pytest.mark.parametrize("name", QUICK)
def test_special_values_and_positions_that_wrap(name: str) -> None:
    g = torch.Generator().manual_seed(1)
    for kind in cases.SPECIAL:
        for n in (9, 1100):
            check_decoder(QUICK[name], check_encoder(QUICK[name], special(kind, n, g), KEY, 2**32 - 100), n, "add")


@pytest.mark.parametrize("ranks", [2, 3, 7, 1000])
def test_a_share_is_divided_on_the_way(ranks: int) -> None:
    for n in (1, 700):
        check_encoder(QUICK["qsgd"], torch.randn(n, generator=torch.Generator().manual_seed(n)), KEY, 5, ranks)


@pytest.mark.parametrize("mode", ["write", "subtract"])
def test_decoders_take_any_bytes(mode: Mode) -> None:
    g = torch.Generator().manual_seed(2)
    for n in (1, 8, 513, 1300):
        check_decoder(QUICK["qsgd"], any_message(QUICK["qsgd"], n, g), n, mode)


def test_ranges_and_plain_symbols() -> None:
    """Parts of a tensor, and codes that a later stage packs."""
    scheme, x = QUICK["qsgd"], torch.randn(1500, generator=torch.Generator().manual_seed(3))
    low, high = 3, 1100
    size = scheme.scale_bytes(high - low) + packed_size(high - low, 4)
    messages, symbols, decoded = [], [], []
    for how in (reference, emulated):
        with how():
            scheme.encoder(x, KEY, 9)(low, high, message := torch.zeros(size, dtype=torch.uint8))
            found, scales = scheme.symbols(x, KEY, 9)
            scheme.dequantise(found, scales, out := torch.ones(1500), "subtract")
        messages.append(message)
        symbols.append(torch.cat([found, scales]))
        decoded.append(out)
    for pair in (messages, symbols, decoded):
        assert torch.equal(*pair)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scheme", all_schemes(), ids=str)
def test_all_schemes(scheme: Scheme) -> None:
    g = torch.Generator().manual_seed(4)
    for n in (*LENGTHS, *range(20, 1100, 83), 6000):
        message = check_encoder(scheme, torch.randn(n, generator=g), KEY, n * 977, 1 + 2 * (n % 2))
        check_decoder(scheme, message, n, "add")
        check_decoder(scheme, any_message(scheme, n, g), n, "subtract")
    for kind in cases.SPECIAL:
        check_decoder(scheme, check_encoder(scheme, special(kind, 1531, g), KEY, 2**32 - 100), 1531, "write")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "target", [{"capability": 80}, {"capability": 89}, {"capability": 90}, {"num_warps": 4}], ids=str
)
@pytest.mark.parametrize("name", QUICK)
def test_all_lengths(name: str, target: dict[str, int]) -> None:
    g = torch.Generator().manual_seed(5)
    step = 1 if target == {"capability": 80} else 7
    for n in range(0, 1101, step):
        message = check_encoder(QUICK[name], torch.randn(n, generator=g), KEY, n * 977, **target)
        check_decoder(QUICK[name], message, n, "add", **target)
