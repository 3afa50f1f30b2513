"""Known answers of importances and their mask."""

from collections.abc import Iterator
from functools import partial

import torch

from thinwire.kernels import importance
from thinwire.kernels.answers.inputs import NUMEL, RANKS, Check, Work, numbers, ordinary, same_bits
from thinwire.kernels.reference import importance as reference

_GUARD = 0.01


def checks(device: torch.device) -> Iterator[Check]:
    yield "importance", partial(_scores, device)
    yield "importance: mask", partial(_masks, device)


def _scores(device: torch.device) -> bool:
    """Of ordinary weights, of weights as odd as the gradient, and of none but zeros."""
    v, right = numbers(), True
    for weights in (ordinary(5), numbers().nan_to_num(0.0, 1.0, -1.0), torch.zeros(NUMEL)):
        found = importance.importance(v.to(device), weights.to(device), _GUARD, RANKS)
        right = right and same_bits(found, reference.importance(v, weights, _GUARD, RANKS))
    return right


def _masks(device: torch.device) -> bool:
    v, weights, how = numbers(), ordinary(5), (_GUARD, RANKS, 100)
    found = importance.most_important(v.to(device), weights.to(device), *how)
    return same_bits(found, reference.most_important(v, weights, *how))


def works(device: torch.device, numel: int) -> Iterator[Work]:
    v, weights = torch.randn(numel, device=device), torch.randn(numel, device=device)
    yield "importance: 1 in 64", partial(importance.most_important, v, weights, _GUARD, RANKS, numel // 64)
