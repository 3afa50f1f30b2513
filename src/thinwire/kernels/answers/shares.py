"""Known answers of shares of a mean and of finiteness."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from thinwire.kernels import shares
from thinwire.kernels.answers.inputs import (
    NUMEL,
    RANKS,
    Check,
    Work,
    finite_numbers,
    numbers,
    ordinary,
    same_bits,
)
from thinwire.kernels.reference import shares as reference


def checks(device: torch.device) -> Iterator[Check]:
    for what, x in (("share", finite_numbers()), ("share that is not finite", numbers())):
        yield what, partial(_enters, x, device)
        yield f"finiteness of a {what}", partial(_tells, x, device)


def _enters(x: Tensor, device: torch.device) -> bool:
    right = True
    for residual in (None, ordinary(3)):
        wanted, got = torch.empty(NUMEL), torch.empty(NUMEL, device=device)
        if not reference.share_into(x, RANKS, residual, wanted):
            wanted.fill_(torch.nan)
        shares.enter_share(x.to(device), RANKS, None if residual is None else residual.to(device), got)
        right = right and same_bits(got, wanted)
    return right


def _tells(x: Tensor, device: torch.device) -> bool:
    return bool(shares.finite_flag(x.to(device))) == bool(torch.isfinite(x).all())


def works(device: torch.device, numel: int) -> Iterator[Work]:
    x, out = torch.randn(numel, device=device), torch.zeros(numel, device=device)
    yield "share", partial(shares.enter_share, x, RANKS, x, out)
    yield "finiteness", partial(shares.finite_flag, x)
