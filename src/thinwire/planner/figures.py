"""What codecs do to gradients on this machine: seconds of work while all ranks work, errors, residuals and memory."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from thinwire.core.codec import Codec
from thinwire.core.ops import AllReduce
from thinwire.core.plan import Plan
from thinwire.ddp.bucket_hook import WORTH_ROUNDS
from thinwire.planner.jobs import STEADY_STEP, Piece, made_up, settle, walk_job
from thinwire.planner.profile import Figures, Layer
from thinwire.worlds.distributed import Distributed
from thinwire.worlds.modelled import Walk

SAMPLE = 1 << 18  # elements of a layer that are looked at
_STEPS = 4  # that are walked for the residual; the last three are timed
_SMALL = (64, 64)  # a tensor whose work is what every tensor costs, however short


def sample_of(gradient: Tensor, most: int = SAMPLE) -> Tensor:
    """Rows of a gradient from its beginning to its end, as many as there is room for: a smaller layer of its kind.

    The first rows alone would be those of frequent words in an embedding.
    """
    gradient = gradient.detach()
    if gradient.numel() <= most or gradient.dim() == 0:
        return gradient.clone()
    rows = max(1, most * gradient.shape[0] // gradient.numel())
    return gradient[torch.arange(rows, device=gradient.device) * gradient.shape[0] // rows]


def is_telling(sample: Tensor) -> bool:
    """Whether a sample says what codecs lose: no number of a gradient that overflowed does, and nor do zeros alone."""
    return bool(sample.isfinite().all()) and bool(sample.any())


def codec_figures(
    codec: str,
    layers: Sequence[Layer],
    samples: Mapping[str, Tensor],
    ranks: int,
    weights: Mapping[str, Tensor] | None = None,
) -> dict[str, Figures]:
    """What a codec does to each layer; layers that the plan leaves alone have none.

    Args:
        codec: The codec, as text.
        layers: The layers.
        samples: Gradients of this rank, by the layer's name, as `sample_of` cuts them; made up where there is none, or
            zeros alone. Of one that is not finite nothing is known: its error is infinite.
        ranks: The number of ranks that train.
        weights: The parameters, cut in the same way, for codecs that compare gradients with them.
    """
    plan, bundle = Plan.parse(codec), min(sum(layer.numel for layer in layers), WORTH_ROUNDS // 4)
    found: dict[str, Figures] = {}
    alike: dict[tuple[int, ...], Figures] = {}  # of layers whose numbers are made up
    timed: dict[tuple[int, ...], Walk] = {}  # of layers of one shape, which take the same time
    least: Walk | None = None
    for layer in layers:
        chosen = plan.decide(layer.name, layer.shape, getattr(torch, layer.dtype)).codec
        if not chosen.stages:
            found[layer.name] = Figures(0.0, 0.0, 0.0)
            continue
        if least is None:
            least = _walked(Piece(chosen, made_up(_SMALL), made_up(_SMALL)), ranks, bundle)[0]
        sample = samples.get(layer.name)
        known = sample is None or bool(sample.isfinite().all())
        if sample is None or not is_telling(sample):
            if layer.shape not in alike:
                rows = max(1, min(layer.shape[0], SAMPLE * layer.shape[0] // max(layer.numel, 1)))
                sample = made_up((rows, *layer.shape[1:]))
                alike[layer.shape] = _figures(Piece(chosen, sample, sample), layer, ranks, bundle, least)
            found[layer.name] = alike[layer.shape] if known else replace(alike[layer.shape], error=math.inf)
            continue
        sample = sample.float().contiguous()
        beside = sample if weights is None else weights.get(layer.name, sample)
        piece = Piece(chosen, sample, beside.detach().float().contiguous())
        found[layer.name] = _figures(piece, layer, ranks, bundle, least, timed)
    return found


def _figures(
    piece: Piece, layer: Layer, ranks: int, bundle: int, least: Walk, timed: dict[tuple[int, ...], Walk] | None = None
) -> Figures:
    timed = {} if timed is None else timed
    walk, error, bias, growth = _walked(piece, ranks, bundle, timed.get(layer.shape))
    timed[layer.shape] = walk
    factor = layer.numel / piece.gradient.numel()
    longer = factor if piece.gradient.numel() > 4 * torch.Size(_SMALL).numel() else 1.0

    def whole(seconds: float, start: float) -> float:
        """A sample's time made the layer's: what every tensor costs does not grow."""
        start = min(start, seconds)
        return start + (seconds - start) * longer

    held = [piece.slots[0].residual_data, *(v for s in piece.slots[0].states for v in s.values())]
    return Figures(
        whole(walk.before, least.before),
        whole(walk.inside, least.inside),
        whole(walk.after, least.after),
        error,
        bias,
        growth,
        round(factor * sum(t.nbytes for t in held if isinstance(t, Tensor))),
    )


def _walked(piece: Piece, ranks: int, bundle: int, known: Walk | None = None) -> tuple[Walk, float, float, float]:
    """The quickest of some walks of steady steps; error and bias of the first, which begins without a residual, and the
    residual after all of them. If the time is `known` and there is no residual, the first one says all."""
    if known is None or piece.codec.transforms:
        settle([piece], ranks)
    for slot in piece.slots:
        slot.residual = None
    start = STEADY_STEP * 2 // ranks * ranks
    walk_job([piece], ranks, start, bundle, measure=True)
    error, bias = _loss(piece, ranks)
    if known is not None and piece.slots[0].residual is None:
        return known, error, bias, 0.0
    walks = [walk_job([piece], ranks, start + ranks * turn, bundle) for turn in range(1, _STEPS)]
    held, length = piece.slots[0].residual, float(piece.gradient.norm()) / ranks
    growth = float(held.float().norm()) / length if held is not None and length > 0 else 0.0
    return min(walks, key=lambda walk: walk.before + walk.inside + walk.after), error, bias, growth


def _loss(piece: Piece, ranks: int) -> tuple[float, float]:
    """Relative error and bias of the step that was walked last."""
    notes, residual = piece.slots[0].notes, piece.slots[0].residual
    if notes.get("given", 0.0) > 0:
        error = float(notes["lost"] / notes["given"]) ** 0.5
    else:
        error = math.inf if bool(piece.gradient.any()) else 0.0  # the sum is not finite: nothing has arrived
    if residual is None:
        return error, 0.0 if piece.codec.unbiased else error**2
    x = piece.gradient.reshape(-1) / ranks
    square = float(x.square().sum())
    return error, float(residual.float() @ x) / square if square > 0 else 0.0


def measure_codecs(
    world: Distributed, candidates: Sequence[str], layers: Sequence[Layer], samples: Mapping[str, Tensor]
) -> dict[str, dict[str, Figures]]:
    """The figures of all candidates, equal on all ranks: the mean of what the ranks find while all of them work.

    A candidate that fails on a rank is left out on all of them, with a warning.

    Args:
        world: The world of the group that trains; all of its ranks call this at the same time.
        candidates: Codecs, as text.
        layers: The layers of the model.
        samples: Gradients of this rank, by the layer's name, as `sample_of` cuts them.
    """
    mine: dict[str, Any] = {}  # figures by layer, or why there are none
    for codec in dict.fromkeys(str(Codec.parse(text)) for text in candidates):
        if codec != "none":
            if world.ranks > 1:
                world.perform(AllReduce([torch.zeros(1, device=world.control_device)]))  # so that all work at once
            try:
                mine[codec] = codec_figures(codec, layers, samples, world.ranks)
            except Exception as reason:  # the other ranks wait for this one
                mine[codec] = f"{type(reason).__name__}: {reason}"
    everyone = world.gathered(mine, "the measurement of codecs") if world.ranks > 1 else [mine]
    return {
        codec: {layer: _mean([rank[codec][layer] for rank in everyone]) for layer in of_layers}
        for codec, of_layers in mine.items()
        if not _failed(codec, [rank[codec] for rank in everyone])
    }


def _failed(codec: str, found: Sequence[Any]) -> bool:
    """Whether a codec failed on any rank; a warning says on which and why."""
    failed = next(((rank, each) for rank, each in enumerate(found) if isinstance(each, str)), None)
    if failed is not None:
        said = f"{codec} is no candidate: rank {failed[0]} could not measure it ({failed[1]})."
        warnings.warn(said, RuntimeWarning, stacklevel=3)
    return failed is not None


def _mean(found: Sequence[Figures]) -> Figures:
    means = {f.name: sum(getattr(each, f.name) for each in found) / len(found) for f in fields(Figures)}
    return Figures(**{**means, "memory": round(means["memory"])})
