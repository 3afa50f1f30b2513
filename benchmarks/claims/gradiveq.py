"""Claims of GradiVeQ (Yu et al., NeurIPS 2018): linearity, the order of a layer's numbers, the age of a basis."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.claims.recording import Recording
from thinwire import PCA, Slot, simulate
from thinwire.stages.pca_basis import Basis, Layout, coefficients, lay_out, reconstruct
from thinwire.stages.pca_samples import decompose, take_sample
from thinwire.stages.pca_samples import start_sampling as clear
from thinwire_lab.recipes.simulated import RecordedStep

LINEAR = ("pca(ratio=8, warmup=0, sample=6)", "powersgd(rank=2)", "fft", "dct", "hadamard")
FORMS = {  # how a layer is laid out, and whether all of its slices are samples
    "filters, first slice (paper)": ("filters", False),
    "filters, all slices": ("filters", True),
    "rows, first slice": ("rows", False),
    "rows, all slices (default)": ("rows", True),
}
PAPER, DEFAULT = "filters, first slice (paper)", "rows, all slices (default)"
SAMPLES = 100
WINDOW = 20


# Linearity.


def run_steps(codec: str, name: str, steps: Sequence[RecordedStep], reduction: str | None = None) -> tuple[Tensor, ...]:
    """The mean by this chain at the last step, and what the same chain makes of P copies of the true mean."""
    codec = f"feedback(keep=off) | {codec}"
    slots: list[Slot] | None = None
    for at, step in enumerate(steps[:-1]):
        slots = simulate(codec, [g[name] for g in step.gradients], slots=slots, step=at, reduction=reduction).slots
    last = [g[name] for g in steps[-1].gradients]
    true = torch.stack([g.double() for g in last]).mean(0).float()
    others, at = deepcopy(slots), len(steps) - 1
    apart = simulate(codec, last, slots=slots, step=at, reduction=reduction).means[0]
    together = simulate(codec, [true] * len(last), slots=others, step=at, reduction=reduction).means[0]
    return apart, together


def deviation(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the largest number."""
    return float((a - b).abs().max() / b.abs().max().clamp_min(1e-30))


def linearity(codec: str, name: str, steps: Sequence[RecordedStep]) -> float:
    """How far sum Q(g_i) is from Q(sum g_i)."""
    return deviation(*run_steps(codec, name, steps))


def ring_deviation(codec: str, name: str, steps: Sequence[RecordedStep]) -> float:
    """How far the pipelined ring's mean is from the all-reduce's."""
    return deviation(run_steps(codec, name, steps, "ring")[0], run_steps(codec, name, steps, None)[0])


def lost(mean: Tensor, true: Tensor) -> float:
    """Share of the energy: |mean - true|^2 / |true|^2."""
    return float((mean - true).double().square().sum() / true.double().square().sum().clamp_min(1e-300))


def hop_errors(name: str, steps: Sequence[RecordedStep], codec: str) -> dict[str, float]:
    """Energy lost in the mean when each hop of a ring encodes anew, and when shards are encoded twice in all."""
    gradients = [g[name] for g in steps[-1].gradients]
    true = torch.stack(gradients).mean(0)
    kinds = ("ring", "sharded")
    return {kind: lost(simulate(codec, gradients, reduction=kind).means[0], true) for kind in kinds}


# Loss of a basis.


@dataclass(frozen=True)
class Learnt:
    """A layer's layout and the basis of some of its steps."""

    layout: Layout
    basis: Basis

    def loss(self, steps: Tensor) -> tuple[float, float]:  # [count, *shape]
        """Squared error and energy over these steps."""
        error = energy = 0.0
        for step in steps:
            rows = self.layout.rows(step.reshape(-1))
            back = reconstruct(coefficients(rows, self.basis, 1), self.basis, 1.0, slice(0, self.layout.count))
            error += float((back - rows).double().square().sum())
            energy += float(rows.double().square().sum())
        return error, energy


def learn(samples: Tensor, form: str, ratio: float, length: int | None = None) -> Learnt | None:
    """The basis of these steps of a layer [count, *shape] at K/ratio coefficients; None if none would help."""
    order, pool = FORMS[form]
    count = len(samples)
    layout = lay_out(tuple(samples.shape[1:]), order, length, count, pool)
    if layout is None:
        return None
    kept = PCA(ratio=ratio, sample=count, pool=pool).kept(layout)
    state: dict[str, object] = {}
    clear(state)
    for step in samples:
        take_sample(state, [layout.rows(step.reshape(-1))], count, pool, True, True)
    columns = decompose(state, pool, kept, None) if kept else None
    if columns is None:
        return None
    means = state["sum"]
    assert isinstance(means, Tensor)
    mean = means / count
    return Learnt(layout, Basis(columns, mean, mean @ columns))


def energy_lost(series: Tensor, form: str, ratio: float, length: int | None = None, samples: int = SAMPLES) -> float:
    """Share of the energy lost in steps behind those that the basis comes from; NaN where there is no basis."""
    learnt = learn(series[:samples], form, ratio, length)
    if learnt is None:
        return float("nan")
    error, energy = learnt.loss(series[samples : samples + WINDOW])
    return error / energy


def age_curve(series: Mapping[str, Tensor], form: str, ratio: float, start: int, window: int = WINDOW) -> list[float]:
    """Share of all layers' energy lost, in one window of steps after the other behind the sampling."""
    bases = {name: learn(each[start : start + SAMPLES], form, ratio) for name, each in series.items()}
    curve = []
    steps = len(next(iter(series.values())))
    for low in range(start + SAMPLES, steps - window + 1, window):
        parts = [b.loss(series[name][low : low + window]) for name, b in bases.items() if b is not None]
        curve.append(sum(error for error, _ in parts) / sum(energy for _, energy in parts))
    return curve


@dataclass(frozen=True)
class Sweep:
    """Energy lost by slice length K in each form, for one layer at one ratio."""

    title: str
    ratio: float
    period: int  # F * D; F in a matrix
    lengths: Sequence[int]
    lost: dict[str, list[float]]


def sweep_lengths(title: str, series: Tensor, ratio: float, lengths: Sequence[int]) -> Sweep:
    settled = series[WINDOW:]  # the very first steps are unlike all others
    table = {form: [energy_lost(settled, form, ratio, length) for length in lengths] for form in FORMS}
    period = series.shape[1] * series.shape[2] if series.dim() > 3 else series.shape[1]
    return Sweep(title, ratio, period, lengths, table)


@dataclass(frozen=True)
class Ages:
    """Curves of energy lost over age, by label, for one recording."""

    title: str
    curves: dict[str, list[float]]


def sweeps(recordings: Sequence[Recording]) -> list[Sweep]:
    """The paper's layer of 16 x 16 x 3 x 3, one of 32 x 32 x 3 x 3, and a matrix of the transformer."""
    cnn = recordings[0].series
    near = [64, 128, 192, 240, 248, 256, 264, 272, 384, 496, 504, 512, 520, 528, 640, 752, 760, 768, 776, 784]
    found = [
        sweep_lengths("CNN, conv 16 → 16, ratio 8", cnn["stages.0.second.0.weight"], 8, near),
        sweep_lengths(
            "CNN, conv 32 → 32, ratio 16",
            cnn["stages.1.second.0.weight"],
            16,
            [128, 256, 288, 512, 768, 960, 992, 1024, 1056, 1088, 1280, 1536],
        ),
    ]
    if len(recordings) > 1:
        matrix = recordings[1].series["blocks.0.feed.0.weight"]
        lengths = [32, 64, 96, 128, 192, 256, 288, 512, 640, 768]
        found.append(sweep_lengths("transformer, linear 64 → 256, ratio 8", matrix, 8, lengths))
    return found


def ages(recording: Recording) -> Ages:
    curves = {}
    for form in (DEFAULT, PAPER):
        for start in (20, max(40, recording.steps // 2 - SAMPLES // 2)):
            curves[f"{form}, from step {start}"] = age_curve(recording.series, form, 8, start)
    return Ages(recording.name, curves)
