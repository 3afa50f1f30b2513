"""Launches for shares of a mean: what `kernels.shares` asks for."""

import torch
from torch import Tensor

from thinwire.kernels.gpu.launch import launch
from thinwire.kernels.gpu.programs import shares as kernels

_TOGETHER = 1024  # elements of one program


def enter_share(x: Tensor, ranks: int, residual: Tensor | None, out: Tensor) -> None:
    """out = x / ranks (+ residual), NaN throughout if a quotient is not finite."""
    n, bad = x.numel(), torch.zeros(1, dtype=torch.int32, device=x.device)
    programs = -(-n // _TOGETHER)
    held = x if residual is None else residual
    launch(kernels.share, programs, x, held, out, bad, n, ranks, RANKS=ranks != 1, RESIDUAL=residual is not None)
    launch(kernels.spoil, programs, out, bad, n)


def finite_flag(x: Tensor) -> Tensor:
    """Whether all elements are finite, as a tensor of one bool."""
    bad = torch.zeros(1, dtype=torch.int32, device=x.device)
    launch(kernels.find_bad, -(-x.numel() // _TOGETHER), x, bad, x.numel())
    return (bad == 0)[0]
