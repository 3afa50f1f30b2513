"""Gradients near a space that PCA can find."""

import math

import torch
from torch import Tensor

from thinwire import Slot
from thinwire.core.context import State

SHAPE = (16, 8, 3, 3)


def draw(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def low_rank(ranks: int, step: int, rank: int = 3, noise: float = 0.05, shape: tuple[int, ...] = SHAPE) -> list[Tensor]:
    """Gradients whose rows lie near one space of dimension `rank`, the same at all steps."""
    length = math.prod(shape[1:])
    space = torch.randn(rank, length, generator=draw(99))
    g = draw(1000 + step)
    sizes, rest = torch.randn(ranks, shape[0], rank, generator=g), torch.randn(ranks, shape[0], length, generator=g)
    return [x.view(shape) for x in sizes @ space + noise * rest]


def state_of(slot: Slot) -> State:
    return slot.states[-1]
