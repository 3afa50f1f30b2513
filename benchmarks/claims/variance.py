"""Variance of uniform and exponential levels with L2 and max norms, on real gradients and on tails of all kinds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.claims.findings import Claim, Figures, Finding, percent, short, verdict
from benchmarks.claims.recording import Recording
from thinwire import Codec

SCHEMES = {
    "QSGD": "qsgd(bits={bits}, bucket={bucket}, norm=l2)",
    "NUQSGD": "nuqsgd(bits={bits}, bucket={bucket})",
    "QSGDinf": "qsgd(bits={bits}, bucket={bucket})",
    "NUQSGDinf": "nuqsgd(bits={bits}, bucket={bucket}, norm=max)",
}
SETTINGS = ((4, 512), (4, 8192), (3, 512))
DRAWS = 3


def tails(numel: int = 1 << 16) -> dict[str, Tensor]:
    """Made-up gradients, from light tails to heavy ones."""
    generator = torch.Generator().manual_seed(7)
    normal = torch.randn(4, numel, generator=generator)
    uniform = torch.rand(numel, generator=generator) - 0.5
    return {
        "Gaussian": normal[0],
        "Laplace": -uniform.sign() * torch.log1p(-2 * uniform.abs().clamp_max(0.4999999)),
        "Student t3": normal[0] / (normal[1:].square().mean(0)).sqrt(),
        "log-normal(2)": torch.exp(2 * normal[1]) * normal[2].sign(),
    }


def variance(text: str, x: Tensor, draws: int = DRAWS) -> float:
    """E|Q(x) - x|^2 / |x|^2."""
    codec = Codec.parse(text)
    errors = [codec.decode(codec.encode(x, step=draw), x.numel()) - x for draw in range(draws)]
    return sum(float(e.double().square().sum()) for e in errors) / draws / float(x.double().square().sum())


def variances(x: Tensor, bits: int, bucket: int) -> dict[str, float]:
    return {name: variance(text.format(bits=bits, bucket=bucket), x) for name, text in SCHEMES.items()}


@dataclass(frozen=True)
class Spread:
    """The four variances of one kind of data in one setting."""

    data: str
    real: bool
    bits: int
    bucket: int
    found: dict[str, float]


def spreads(recordings: Sequence[Recording], settings: Sequence[tuple[int, int]] = SETTINGS) -> list[Spread]:
    data = {r.name: r.last() for r in recordings}
    real = set(data)
    data |= tails()
    return [
        Spread(name, name in real, bits, bucket, variances(x, bits, bucket))
        for bits, bucket in settings
        for name, x in data.items()
    ]


# Unbiasedness and bounds.


def bound(scheme: str, bits: int, d: int) -> float:
    """The largest relative variance with the L2 norm: Alistarh et al., lemma 3.1, and the safe form for NUQSGD."""
    if scheme == "QSGD":
        s = (1 << (bits - 1)) - 1
        return min(d / s**2, math.sqrt(d) / s)
    s = (1 << (bits - 1)) - 2
    return 1 / 8 + d * 2.0 ** (-2 * s - 2) if d < 1 << (2 * s + 2) else 2.0**-s * math.sqrt(d) - 7 / 8


def mean_deviation(text: str, x: Tensor, draws: int = 400) -> float:
    """The root mean square of the draws' mean error in units of its standard deviation: 1 if the scheme is unbiased."""
    codec = Codec.parse(text)
    each = torch.stack([codec.decode(codec.encode(x, step=draw), x.numel()) for draw in range(draws)]).double()
    deviation = each.std(0)
    drawn = (each != each[0]).sum(0) >= 20  # rarer outcomes are no normal variable
    z = (each.mean(0) - x.double())[drawn] / (deviation[drawn] / math.sqrt(draws))
    return float(z.square().mean().sqrt())


def used_share_of_bound(scheme: str, data: Mapping[str, Tensor], bits: int = 4, bucket: int = 512) -> float:
    """The largest measured variance, as a share of its bound."""
    text = SCHEMES[scheme].format(bits=bits, bucket=bucket)
    return max(variance(text, x[:bucket], 50) for x in data.values()) / bound(scheme, bits, bucket)


def variance_finding(found: Sequence[Spread], recordings: Sequence[Recording]) -> Finding:
    finding = Finding("variance", "Variance of QSGD and NUQSGD", plot="variance")
    finding.explanation = "E|Q(x) − x|² / |x|², mean of three draws; `inf` scales a bucket by its largest magnitude."
    header = ("data", "bits", "bucket", *SCHEMES)
    rows = [[s.data, str(s.bits), str(s.bucket), *(short(v) for v in s.found.values())] for s in found]
    finding.figures.append(Figures("Relative variance at equal bits", header, rows))
    real = [s for s in found if s.real]
    finding.claims += [_lower(found, real), _parity(real), _unbiased(recordings)]
    for s in real:
        smallest = min(s.found, key=lambda name: s.found[name])
        if not smallest.startswith("NUQ"):
            finding.losses.append(
                f"{s.data}, {s.bits} bits, buckets of {s.bucket}: {smallest} has the least variance"
                f" ({short(s.found[smallest])}); NUQSGDinf has {short(s.found['NUQSGDinf'])}."
            )
    return finding


def _lower(found: Sequence[Spread], real: Sequence[Spread]) -> Claim:
    factors = [s.found["QSGD"] / s.found["NUQSGD"] for s in real]
    return Claim(
        "NUQSGD",
        "lower variance than QSGD at equal bits",
        "lower (no figure)",
        f"on real gradients {short(min(factors))} to {short(max(factors))} times lower",
        verdict([s.found["NUQSGD"] < s.found["QSGD"] for s in found]),
    )


def _parity(real: Sequence[Spread]) -> Claim:
    l2 = [s.found["NUQSGD"] / s.found["QSGDinf"] for s in real]
    largest = [s.found["NUQSGDinf"] / s.found["QSGDinf"] for s in real]
    return Claim(
        "NUQSGD",
        "as good as QSGDinf",
        "equal accuracy",
        f"variance over that of QSGDinf, real gradients: NUQSGD {short(min(l2))} to {short(max(l2))}, NUQSGDinf"
        f" {short(min(largest))} to {short(max(largest))}",
        verdict([factor < 1.1 for factor in l2 + largest]),
    )


def _unbiased(recordings: Sequence[Recording]) -> Claim:
    data = {r.name: r.last() for r in recordings} | tails(1 << 12)
    real = recordings[0].last()
    z = {name: mean_deviation(SCHEMES[name].format(bits=4, bucket=512), real[:1024]) for name in SCHEMES}
    used = {name: used_share_of_bound(name, data) for name in ("QSGD", "NUQSGD")}
    return Claim(
        "NUQSGD",
        "unbiased, with an explicit bound of the variance",
        "theorem",
        f"errors of means of 400 draws, in standard errors (1 = unbiased): {short(min(z.values()))} to"
        f" {short(max(z.values()))}; largest variance {percent(used['NUQSGD'])} of its bound (QSGD"
        f" {percent(used['QSGD'])})",
        verdict([0.85 < value < 1.15 for value in z.values()] + [share <= 1 for share in used.values()]),
    )
