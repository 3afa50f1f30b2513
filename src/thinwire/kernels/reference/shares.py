"""A rank's share of a mean, and whether numbers are finite: the specification of `thinwire.kernels.shares`."""

import torch
from torch import Tensor


def divided(x: Tensor, by: float, out: Tensor | None = None) -> Tensor:
    """x / by, rounded once on every device.

    On an accelerator torch multiplies by the reciprocal of a Python number, which may be wrong in the last bit; by a
    tensor it divides.
    """
    if x.is_cpu:
        return torch.div(x, by, out=out)
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    divisor = torch.full((), by, dtype=wide.dtype, device=x.device)
    if out is not None and wide is x:
        return torch.div(wide, divisor, out=out)
    quotient = wide / divisor
    return quotient.to(x.dtype) if out is None else out.copy_(quotient)


def share_into(x: Tensor, ranks: int, residual: Tensor | None, out: Tensor) -> Tensor:
    """out = x / ranks, plus the residual if there is one, in float32; whether all the quotients are finite."""
    out.copy_(divided(x.detach().float(), ranks))
    finite = finite_flag(out)
    if residual is not None:
        out.add_(residual)
    return finite


def finite_flag(x: Tensor) -> Tensor:
    """Whether there is no infinity and no NaN, as a tensor of one bool on the device of x: nobody waits for it."""
    if not x.numel():
        return torch.ones((), dtype=torch.bool, device=x.device)
    largest: Tensor = torch.linalg.vector_norm(x, float("inf"))
    return largest.isfinite()


def all_finite(x: Tensor) -> bool:
    """One pass in the usual case: a finite sum has only finite terms."""
    return bool(torch.isfinite(x.sum())) or bool(torch.isfinite(x).all())


def largest_magnitude(x: Tensor) -> Tensor:
    """max |x| as a tensor of one number, 0 for none, infinite if anything is not finite."""
    largest = x.abs().amax().reshape(1) if x.numel() else x.new_zeros(1)
    return torch.where(torch.isfinite(largest), largest, torch.full_like(largest, float("inf")))
