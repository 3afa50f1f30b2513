"""How much of a gradient each codec loses, by the bytes it needs."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from benchmarks.claims.recording import Recording
from thinwire import Codec, Slot, simulate

LAST = 3  # steps that are measured, behind those a chain learns from
DENSITIES = (1 / 256, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 0.15, 1 / 4)
QUANTISERS = {
    "qsgd": [f"qsgd(bits={b})" for b in (2, 3, 4, 6, 8)],
    "qsgd, L2": [f"qsgd(bits={b}, norm=l2)" for b in (2, 3, 4, 6, 8)],
    "nuqsgd": [f"nuqsgd(bits={b})" for b in (3, 4, 5, 6)],
    "nuqsgd, max": [f"nuqsgd(bits={b}, norm=max)" for b in (2, 3, 4, 5)],
    "alq": [f"alq(bits={b}, start=0)" for b in (3, 4, 5, 6)],
    "hadamard | qsgd": [f"hadamard | qsgd(bits={b})" for b in (2, 3, 4, 6, 8)],
    "rangefloat": [f"rangefloat(bits={b})" for b in (4, 5, 6, 8, 10)],
    "integers": [f"integers(bits={b})" for b in (4, 8)],
    "terngrad": ["terngrad"],
    "sign": ["sign"],
    "fp16": ["fp16"],
    "bf16": ["bf16"],
}
SELECTORS = {
    "topk": [f"topk(density={d})" for d in DENSITIES],
    "topk | rangefloat": [f"topk(density={d}) | rangefloat(bits=10)" for d in DENSITIES],
    "fft | topk | rangefloat": [f"fft | topk(density={d}) | rangefloat(bits=10)" for d in DENSITIES],
    "dct | topk | rangefloat": [f"dct | topk(density={d}) | rangefloat(bits=10)" for d in DENSITIES],
    "importance": [f"importance(density={d}, mask_nodes=1)" for d in DENSITIES],
    "randomk": [f"randomk(density={d})" for d in DENSITIES],
    "powersgd": [f"powersgd(rank={r}, least=1)" for r in (1, 2, 4, 8)],
    "pca": [f"pca(ratio={r}, warmup=0, sample=60)" for r in (4, 8, 16, 32)],
}
FFT, TOPK, SHORT_TOPK = "fft | topk | rangefloat", "topk", "topk | rangefloat"
RIVALS = {
    FFT: [f"fft | topk(density={d}) | rangefloat(bits=10)" for d in (0.15,)],
    TOPK: SELECTORS[TOPK],
    SHORT_TOPK: SELECTORS[SHORT_TOPK],
    "qsgd(bits=2)": ["qsgd(bits=2)"],
    "terngrad": ["terngrad"],
}


@dataclass(frozen=True)
class Point:
    """Bits that one number takes on the wire, and the share of the energy that is lost."""

    bits: float
    lost: float


def history(codec: Codec) -> int:
    """Steps a chain must have seen before it works as it does later."""
    names = {stage.name for stage in codec.stages}
    return 61 if "pca" in names else 8 if "powersgd" in names else 1 if "alq" in names else 0


def measure(text: str, series: Mapping[str, Tensor], weights: Mapping[str, Tensor] | None = None) -> Point:
    """Bits and loss of one chain over the last steps of all tensors [steps, *shape], without error feedback."""
    codec = Codec.parse(f"feedback(keep=off) | {text}")
    count = min(LAST, min(len(steps) for steps in series.values()))
    error = energy = size = numel = 0.0
    for name, steps in series.items():
        weight = None if weights is None else weights[name]
        for at, (decoded, sent) in enumerate(_transmitted(codec, steps[-(count + history(codec)) :], weight)):
            true = steps[at - count]
            error += float((decoded - true).double().square().sum())
            energy += float(true.double().square().sum())
            size += sent
            numel += true.numel()
    return Point(8 * size / numel, error / energy)


def _transmitted(codec: Codec, steps: Tensor, weight: Tensor | None) -> list[tuple[Tensor, int]]:
    """What one message of each of the last steps decodes to, and its bytes.

    Chains that agree with others are run on two ranks, whose all-reduce sends each number once. The second rank has
    the same gradient; or, for chains that draw, none, as two draws would be better than one.
    """
    if codec.self_contained:
        sent = [codec.encode(step, step=at) for at, step in enumerate(steps)]
        return [(codec.decode(m, s.numel()).view_as(s), m.numel()) for m, s in zip(sent, steps, strict=True)]
    slots: list[Slot] | None = None
    found = []
    reduction = None if codec.additive else "gathered"
    for at, step in enumerate(steps):
        both, times = ([step, torch.zeros_like(step)], 2) if codec.unbiased else ([step, step], 1)
        outcome = simulate(codec, both, slots=slots, step=at, reduction=reduction, weights=weight)
        slots = outcome.slots
        found.append((outcome.means[0] * times, max(outcome.sent)))
    return found[history(codec) :]


def curves(
    families: Mapping[str, Sequence[str]], series: Mapping[str, Tensor], weights: Mapping[str, Tensor] | None = None
) -> dict[str, list[Point]]:
    """The points of each family, by bits."""
    found = {name: [measure(text, series, weights) for text in texts] for name, texts in families.items()}
    return {name: sorted(points, key=lambda p: p.bits) for name, points in found.items()}


def at_bits(points: Sequence[Point], bits: float) -> float | None:
    """The loss at so many bits, on a straight line between two points of logarithmic axes; None outside of them."""
    for low, high in pairwise(points):
        if low.bits <= bits <= high.bits and min(low.lost, high.lost) > 0:
            share = math.log(bits / low.bits) / math.log(high.bits / low.bits)
            return math.exp(math.log(low.lost) * (1 - share) + math.log(high.lost) * share)
    return None


def made_up_signals(numel: int = 1 << 15) -> dict[str, dict[str, Tensor]]:
    """Vectors with and without structure in their spectrum, a step each."""
    generator = torch.Generator().manual_seed(5)
    noise = torch.randn(numel, generator=generator)
    place = torch.arange(numel) * (2 * math.pi / 512)
    smooth = torch.sin(place) + 0.5 * torch.sin(5 * place + 1)
    signals = {"white noise": noise, "two slow waves and noise": smooth + 0.3 * noise}
    return {name: {"": signal[None]} for name, signal in signals.items()}


@dataclass(frozen=True)
class Rivalry:
    """What the FFT chain loses on one tensor, and others at as many bytes (single-point rivals: at their own)."""

    title: str
    bits: float
    lost: dict[str, float | None]

    def wins(self, against: Collection[str]) -> bool:
        """Whether the FFT chain loses no more than any of these."""
        mine = self.lost[FFT]
        rivals = [value for name, value in self.lost.items() if name in against and value is not None]
        return mine is not None and all(mine <= value for value in rivals)


def rivalry(title: str, series: Mapping[str, Tensor]) -> Rivalry:
    found = curves(RIVALS, series)
    bits = found[FFT][0].bits
    lost = {name: points[0].lost if len(points) == 1 else at_bits(points, bits) for name, points in found.items()}
    return Rivalry(title, bits, lost)


def shuffled(series: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same numbers of each tensor in another order, the same at every step: no neighbours are left."""
    generator = torch.Generator().manual_seed(3)
    return {name: s.flatten(1)[:, torch.randperm(s[0].numel(), generator=generator)] for name, s in series.items()}


def rivalries(recordings: Sequence[Recording]) -> list[Rivalry]:
    """Every recorded tensor by itself, all of a network together, and made-up signals."""
    found = []
    for recording in recordings:
        found.append(rivalry(f"{recording.name}: all", recording.series))
        kind = recording.name.split()[0]
        found += [rivalry(f"{kind}: `{name}`", {name: steps}) for name, steps in recording.series.items()]
    found.append(rivalry(f"{recordings[0].name}, numbers shuffled", shuffled(recordings[0].series)))
    return found + [rivalry(name, series) for name, series in made_up_signals().items()]
