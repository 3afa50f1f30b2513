"""What the kernels of quantisers are tried on, and the comparison with the reference."""

import torch
from torch import Tensor

from tests.gpu.emulation import emulated, reference
from thinwire.kernels.answers.inputs import same_bits
from thinwire.kernels.modes import Mode
from thinwire.kernels.packing import packed_size
from thinwire.kernels.quantise import Scheme

TABLE = torch.tensor([0.0, 0.05, 0.25, 0.6, 1.0])
SPECIAL = ("nan", "inf", "subnormal", "tiny", "huge", "largest", "zeros", "smallest", "low edge", "high edge", "mixed")


def special(kind: str, n: int, g: torch.Generator) -> Tensor:
    x = torch.randn(n, generator=g)
    positive = x > 0
    if kind in ("nan", "inf") and n:
        x[torch.randint(n, (1,), generator=g)] = float("nan") if kind == "nan" else float("-inf")
    scaled = {"subnormal": 1e-41, "tiny": 1e-37, "huge": 1e37, "zeros": 0.0}
    two = {
        "largest": (3.4028234663852886e38, -3.4028234663852886e38),
        "smallest": (1e-45, -1e-45),
        "low edge": (2.0**-100, 2.0**-101),
        "high edge": (2.0**100, 2.0**99),
    }
    if kind in scaled:
        return x * scaled[kind]
    if kind in two:
        return torch.where(positive, *two[kind])
    if kind == "mixed":
        return x * torch.pow(10.0, torch.randint(-44, 38, (n,), generator=g).float())
    return x


def out_of(n: int) -> Tensor:
    """What is added to, with zeros of both signs."""
    out = torch.randn(n, generator=torch.Generator().manual_seed(n))
    out[::3] = torch.where(out[::3] > 0, 0.0, -0.0)
    return out


def check_encoder(scheme: Scheme, x: Tensor, key: int, base: int, ranks: int = 1, **target: int) -> Tensor:
    """The message of the emulated kernel is that of the reference, at an address that is not aligned."""
    n = x.numel()
    size = scheme.scale_bytes(n) + packed_size(n, scheme.bits)
    wanted, got = torch.empty(size, dtype=torch.uint8), torch.full((size + 1 + n % 4,), 0xAB, dtype=torch.uint8)
    with reference():
        scheme.encoder(x, key, base, ranks)(0, n, wanted)
    with emulated(**target):
        scheme.encoder(x, key, base, ranks)(0, n, got[1 + n % 4 :])
    assert torch.equal(got[1 + n % 4 :], wanted), (scheme, n, (got[1 + n % 4 :] != wanted).nonzero()[:5])
    return wanted


def check_decoder(scheme: Scheme, message: Tensor, n: int, mode: Mode, **target: int) -> None:
    """So are the elements of any bytes."""
    wanted, got = out_of(n), out_of(n)
    message = torch.cat([torch.zeros(1 + n % 4, dtype=torch.uint8), message])[1 + n % 4 :]  # not aligned
    with reference():
        scheme.decoder(wanted, mode)(0, n, message)
    with emulated(**target):
        scheme.decoder(got, mode)(0, n, message)
    assert same_bits(got, wanted), (scheme, n, mode)


def any_message(scheme: Scheme, n: int, g: torch.Generator) -> Tensor:
    size = scheme.scale_bytes(n) + packed_size(n, scheme.bits)
    return torch.randint(0, 256, (size,), generator=g, dtype=torch.uint8)
