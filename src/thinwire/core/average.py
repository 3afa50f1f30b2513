"""The heart: one tensor, averaged over the ranks through a chain. Read this first."""

import torch
from torch import Tensor

from thinwire.core.codec import Codec
from thinwire.core.message import agree_on_wire
from thinwire.core.ops import Rounds
from thinwire.core.route import StepInfo
from thinwire.core.slot import Slot
from thinwire.core.step import Step


def average(
    codec: Codec, tensor: Tensor, slot: Slot, info: StepInfo, weights: Tensor | None = None, out: Tensor | None = None
) -> Rounds[Tensor]:
    """The mean of `tensor` over the ranks; what the chain loses is kept in `slot` for the next step.

    1. Divide by the number of ranks and add the residual: this is what the rank gives.
    2. Agree and encode, transform by transform, into the space where sums are taken.
    3. Sum over the ranks, by the reduction of the route.
    4. Decode the sum, transform by transform, backwards.
    5. If it is finite: residual = given - delivered, and the stages observe the mean.

    A non-finite value on any rank reaches every rank as non-finite, and then no state changes. `out` takes the mean; it
    may be the tensor itself. All choices for speed are in `core.route`; `core.step` follows the route.
    """
    slot.open(codec, tuple(tensor.shape))
    result = torch.empty_like(tensor, memory_format=torch.contiguous_format) if out is None else out
    if tensor.numel() == 0:
        return result
    step = Step(codec, slot, info, weights, result)
    x = step.enter(tensor)
    for link in step.transforms:
        link.ctx.shared = yield from link.stage.agree(x, link.ctx)
        x = step.encode(link, x)
    x = step.add_residual_in_sum_space(x)
    yield from agree_on_wire(step.coders, x)
    reduced = yield from step.sum(x)
    mean = step.decode(x, reduced.total)
    if codec.stages or step.had_residual:  # without either nobody asks whether the mean is finite
        step.finish(x, reduced, mean)
    if mean.data_ptr() != result.data_ptr() or mean.dtype != result.dtype:
        result.copy_(mean.view(result.shape))
    return result
