"""The rounds of some gradients that share them, walked without a network: what is sent, and in how many operations."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from thinwire.core.average import average
from thinwire.core.buffers import Buffers
from thinwire.core.coalesced import coalesced
from thinwire.core.codec import Codec
from thinwire.core.ops import Rounds
from thinwire.core.route import StepInfo
from thinwire.core.slot import Slot
from thinwire.core.spec import Spec
from thinwire.ddp.engine import alike, plain_rounds
from thinwire.worlds.modelled import Walk, walk

STEADY_STEP = 1 << 24  # schedules and warm-ups in steps are over
_MOST_STEPS = 120  # in which a stage that learns must be ready


@dataclass
class Piece:
    """One gradient, its codec, and the state of the walked ranks."""

    codec: Codec
    gradient: Tensor
    weights: Tensor
    slots: tuple[Slot, Slot] = field(default_factory=lambda: (Slot(), Slot()))
    seed: int = 0

    @property
    def is_ready(self) -> bool:
        """Whether all transforms work that ever will."""
        if not self.codec.stages or self.gradient.numel() == 0:
            return True
        if not self.slots[0].states:
            return False
        states = self.slots[0].states[self.codec.offset :]
        specs = self.codec.specs(Spec.of(tuple(self.gradient.shape)))
        stages = zip(self.codec.transforms, states, specs, strict=False)
        return all(
            stage.declines(spec) is not None or stage.instead(state, spec) is None for stage, state, spec in stages
        )


def made_up(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Numbers that are distributed like gradients, with tails heavier than those of a normal distribution."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=random).mul_(torch.rand(shape, generator=random).add_(0.1)).mul_(1e-3)


def walk_job(
    pieces: Sequence[Piece], ranks: int, step: int = STEADY_STEP, bundle: int = 0, measure: bool = False
) -> Walk:
    """What a rank does to average these gradients in the same rounds, as `ddp.engine` averages a bundle of buckets.

    Args:
        pieces: The gradients.
        ranks: The number of ranks.
        step: The number of the step.
        bundle: Elements that would travel along, if more than those of the pieces.
        measure: Note how much is lost.
    """
    buffers = (Buffers(), Buffers())
    coded = [piece for piece in pieces if piece.codec.stages]
    plain = [piece.gradient for piece in pieces if not piece.codec.stages]
    bundle = max(bundle, sum(piece.gradient.numel() for piece in coded))
    aside = bool(coded) and all(piece.codec.coders for piece in coded)

    def rounds(rank: int) -> Rounds[list[object]]:
        work: list[Rounds[object]] = []
        if plain:
            work += [plain_rounds([x.clone() for x in group], ranks, aside) for group in alike(plain)]
        for piece in coded:
            info = StepInfo(rank, ranks, piece.seed, step, None, bundle, measure, buffers[rank])
            gradient = piece.gradient.clone()
            work.append(average(piece.codec, gradient, piece.slots[rank], info, piece.weights, out=gradient))
        return coalesced(work)

    return walk(rounds, ranks)


def settle(pieces: Sequence[Piece], ranks: int) -> Walk:
    """The walk of a step in which all codecs have started up, after as many others as that takes."""
    start = STEADY_STEP // ranks * ranks  # stages take turns by the step: rank 0 first
    found = walk_job(pieces, ranks, start)
    for step in range(1, _MOST_STEPS):
        if step > 1 and all(piece.is_ready for piece in pieces):
            break
        if step == 1 and all(not piece.codec.transforms for piece in pieces):
            break  # they have nothing to learn
        found = walk_job(pieces, ranks, start + step * ranks)
    return found


@lru_cache(maxsize=512)
def walked(
    codecs: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], ranks: int, dtypes: tuple[str, ...] | None = None
) -> Walk:
    """The walk of gradients of these shapes through these codecs; the numbers are made up.

    Args:
        codecs: The codec of each gradient, as text.
        shapes: The shape of each gradient.
        ranks: The number of ranks.
        dtypes: The type of each gradient's numbers; None: float32.
    """
    pieces = []
    for number, (text, shape, dtype) in enumerate(
        zip(codecs, shapes, dtypes or ("float32",) * len(shapes), strict=True)
    ):
        tensor = _kept(shape).to(getattr(torch, dtype))
        pieces.append(Piece(Codec.parse(text), tensor, tensor, seed=zlib.crc32(f"{number}".encode())))
    return settle(pieces, ranks)


@lru_cache(maxsize=64)
def _kept(shape: tuple[int, ...]) -> Tensor:
    return made_up(shape)
