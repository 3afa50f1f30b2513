"""A rank's share of a mean, and whether numbers are finite: the specification of `thinwire.kernels.shares`."""

import torch
from torch import Tensor


def share_into(x: Tensor, ranks: int, residual: Tensor | None, out: Tensor) -> bool:
    """out = x / ranks, plus the residual if there is one, in float32; whether all the quotients are finite."""
    out.copy_(x.detach().float() / ranks)
    finite = all_finite(out)
    if residual is not None:
        out.add_(residual)
    return finite


def all_finite(x: Tensor) -> bool:
    """One pass in the usual case: a finite sum has only finite terms."""
    return bool(torch.isfinite(x.sum())) or bool(torch.isfinite(x).all())


def largest_magnitude(x: Tensor) -> Tensor:
    """max |x| as a tensor of one number, 0 for none, infinite if anything is not finite."""
    largest = x.abs().amax().reshape(1) if x.numel() else x.new_zeros(1)
    return torch.where(torch.isfinite(largest), largest, torch.full_like(largest, float("inf")))
