"""What a layer's sampled steps say: a basis, and which layout and how many coefficients unseen steps need.

Slices are scaled by a power of two so that neither tiny nor huge gradients leave the range of fp32.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from thinwire.core.context import State
from thinwire.stages.pca_basis import Layout

GATHERED = ("gram", "samples", "early_gram")  # of each layout; those of the second one have `suffix`
_CONSTANT = 1e-6  # a variance below this share of the energy is rounding
_FOR_AGE = 0.5  # of the loss that is asked for: the rest is for the way that the space moves while a basis is in use


def suffix(layout: int) -> str:
    """What the statistics of a layout have at the end of their names."""
    return f"_{layout}" if layout else ""


def start_sampling(state: State) -> None:
    statistics = [f"{name}{suffix(layout)}" for name in GATHERED for layout in (0, 1)]
    for name in ("basis", "mean", "offset", "reach", "fresh", "layout", "sum", "early_sum", *statistics):
        state.pop(name, None)
    state.update(taken=0, scale=0.0, rows=0)


def take_sample(
    state: State, layouts: Sequence[Tensor], sample: int, pool: bool, centre: bool, keeps: bool, halves: bool = False
) -> None:
    """Add one step's slices [count, length] in each layout; only the rank that `keeps` statistics needs more than sums.

    A rank that takes over in the middle (a slot loaded elsewhere) keeps none: they would not fit the sum. `halves`:
    the statistics of the first half are kept too, so that what they give can be tried on the second.
    """
    rows = layouts[0]
    if centre:
        state["sum"] = state["sum"] + rows if "sum" in state else rows.clone()
    used = list(layouts) if pool else [each[:1] for each in layouts]
    if keeps and state["rows"] == state["taken"] * used[0].shape[0]:
        if not state["scale"]:
            largest = max(float(each.abs().amax()) for each in used)
            state["scale"] = 2.0 ** -math.frexp(largest)[1] if largest else 0.0
        state["rows"] += used[0].shape[0]
        for at, each in enumerate(used):
            _gather(state, suffix(at), each * state["scale"], sample)
    else:
        state["rows"] = 0
        for name in [f"{name}{suffix(at)}" for name in GATHERED for at in (0, 1)] + ["early_sum"]:
            state.pop(name, None)  # of another world, in which this rank kept them
    state["taken"] += 1
    if halves and state["rows"] and state["taken"] == sample // 2:
        state.update({f"early_{key}": state[key] for key in ("sum", "gram", f"gram{suffix(1)}") if key in state})


def _gather(state: State, end: str, used: Tensor, sample: int) -> None:
    count, length = used.shape
    samples, gram = state.get(f"samples{end}"), state.get(f"gram{end}")
    if sample * count < length:
        state[f"samples{end}"] = used if samples is None else torch.cat([samples, used])
    else:
        state[f"gram{end}"] = used.t() @ used if gram is None else torch.addmm(gram, used.t(), used)


def in_layout(rows: Tensor, layouts: Sequence[Layout], at: int) -> Tensor:
    """Slices of the first layout, in another one."""
    return layouts[at].rows(layouts[0].flat(rows)) if at else rows


class Learnt(NamedTuple):
    """A basis [length, d], and the layout of the slices that it is for."""

    columns: Tensor
    layout: int


def _statistics(state: State, layouts: Sequence[Layout], at: int, pool: bool) -> State:
    """What was sampled of one layout, as if it were the only one."""
    given = {key: state[key] for key in ("taken", "scale", "rows")}
    given |= {name: state[f"{name}{suffix(at)}"] for name in GATHERED if f"{name}{suffix(at)}" in state}
    for key in ("sum", "early_sum"):
        if key in state:
            given[key] = in_layout(state[key], layouts, at)[: None if pool else 1]
    if state["rows"]:
        given["rows"] = state["taken"] * (layouts[at].count if pool else 1)
    return given


def learn(
    state: State, layouts: Sequence[Layout], pool: bool, trial: int, kept: Sequence[int] | None, energy: float | None
) -> Learnt | None:
    """The basis of the layout that loses least of unseen steps with so many columns `kept` for each of them, or,
    without these, of the one that needs fewest coefficients to lose at most `energy`. None: there is no such basis.

    A basis of the first half of `trial` samples is tried on the second half; then all of them make the one that is
    used. Without a trial (0, or a checkpoint of a version without halves) the first layout is taken, and its own
    samples say what is lost.
    """
    best = None
    if trial and ("early_gram" in state or "samples" in state):
        best = _best_unseen(state, layouts, pool, trial // 2, kept, energy or 0.0)
        if best is None and kept is None:
            return None
    at, wanted = best or (0, kept[0] if kept else None)
    columns = decompose(_statistics(state, layouts, at, pool), pool, wanted, None if best else energy)
    return None if columns is None else Learnt(columns, at)


def _best_unseen(
    state: State, layouts: Sequence[Layout], pool: bool, early: int, kept: Sequence[int] | None, energy: float
) -> tuple[int, int] | None:
    """The best layout, and how many columns it needs."""
    found: list[tuple[float, int, int]] = []
    for at, layout in enumerate(layouts):
        lost = _lost_unseen(_statistics(state, layouts, at, pool), early)
        if lost is None:
            continue
        if kept is not None:
            found.append((float(lost[min(kept[at], len(lost)) - 1]), at, kept[at]))
            continue
        columns = int((lost > _FOR_AGE * energy).sum()) + 1
        if columns <= len(lost) and 2 * columns <= layout.length:
            found.append((columns * layout.count, at, columns))
    return min(found)[1:] if found else None


def _lost_unseen(given: State, early: int) -> Tensor | None:
    """The share of the second half's variance that a basis of the first half loses, with 1, 2, 3 ... columns.

    None: there is nothing to compare. Rounding in the directions does no harm, since they only have to be orthonormal.
    """
    if "samples" in given:
        found = _halves_of_samples(given, early)
    elif "early_gram" in given:
        found = _halves_of_gram(given, early)
    else:
        return None
    if found is None:
        return None
    captured, total = found
    if not bool(total > 0) or not bool(torch.isfinite(total)):
        return None
    return 1 - captured.cumsum(0) / total


def _halves_of_samples(given: State, early: int) -> tuple[Tensor, Tensor] | None:
    """The second half's energy along each direction of the first, and all of it."""
    samples = given["samples"].double().view(given["taken"], -1, given["samples"].shape[1])
    energy = samples[:early].square().sum()
    if "sum" in given:
        samples = samples - samples[:early].mean(0)
    first, second = samples[:early].flatten(0, 1), samples[early:].flatten(0, 1)
    if not _varies(first.square().sum(), energy):
        return None
    directions = torch.linalg.svd(first, full_matrices=False)[2]
    return (second @ directions.t()).square().sum(0), second.square().sum()


def _halves_of_gram(given: State, early: int) -> tuple[Tensor, Tensor] | None:
    """The same from the sums of squares and products of the first half, and of all."""
    first = given["early_gram"].double()
    second = given["gram"].double() - first
    energy = first.trace()
    if "sum" in given:
        late = given["taken"] - early
        mean = given["early_sum"].double() * (given["scale"] / early)
        rest = given["sum"].double() * given["scale"] - mean * early
        across = rest.t() @ mean
        square = mean.t() @ mean
        first = first - early * square
        second = second - across - across.t() + late * square
    if not _varies(first.trace(), energy):
        return None
    directions = torch.linalg.eigh(first.float())[1].flip(1).double()  # half the time of fp64
    return (directions * (second @ directions)).sum(0), second.trace()


def decompose(state: State, pool: bool, target: int | None, energy: float | None) -> Tensor | None:
    """The basis [length, d]: `target` columns, or as few as lose at most `energy` of the samples' variance.

    None where there is nothing to learn from: no samples, no variance, numbers beyond fp32.
    """
    found = _spectrum(state, pool)
    if found is None:
        return None
    variances, columns, independent = found
    total = variances.sum()
    if not bool(total > 0) or not bool(torch.isfinite(total)):
        return None
    wanted = target or 0
    if energy is not None:
        kept = variances.cumsum(0)
        wanted = int((kept < (1 - energy) * total).sum()) + 1
    d = min(wanted, independent, columns.shape[1])
    if d < 1 or 2 * d > columns.shape[0]:
        return None
    return columns[:, :d].float().contiguous()


def _spectrum(state: State, pool: bool) -> tuple[Tensor, Tensor, int] | None:
    """Variances in falling order, their directions as columns, and the number of independent samples."""
    taken, independent, means = int(state["taken"]), int(state["rows"]), None
    if "sum" in state and taken:
        means = (state["sum"] if pool else state["sum"][:1]).double() * (state["scale"] / taken)
        independent -= means.shape[0]
    if "samples" in state:
        samples = state["samples"].double()
        energy = samples.square().sum()
        if means is not None:
            samples = (samples.view(taken, *means.shape) - means).view_as(samples)
        if not _varies(samples.square().sum(), energy):
            return None
        _, sizes, directions = torch.linalg.svd(samples, full_matrices=False)
        return sizes.square(), directions.t(), independent
    if "gram" not in state:
        return None
    gram = state["gram"].double()
    energy = gram.trace()
    if means is not None:
        gram = gram.addmm_(means.t(), means, alpha=-taken)
    if not _varies(gram.trace(), energy):
        return None
    variances, columns = torch.linalg.eigh(gram)
    return variances.flip(0).clamp_(min=0), columns.flip(1), independent


def _varies(variance: Tensor, energy: Tensor) -> bool:
    return bool(torch.isfinite(energy)) and bool(variance > _CONSTANT * energy)
