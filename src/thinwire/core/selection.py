"""Whether a step's state can be selected on the device, so that the host need not wait to know if the mean is finite.

On the CPU the host knows it, and changes no state otherwise. An accelerator works behind the host: there, new tensors
are selected by a flag on the device, `torch.where(finite, new, old)`. The step counts in any case, as its number does.
Chains whose stages decide by the mean itself wait for the flag, once for each tensor.
"""

from collections.abc import Sequence

from thinwire.core.codec import Codec
from thinwire.core.message import Link
from thinwire.core.route import Route
from thinwire.core.slot import Slot
from thinwire.core.stage import DeliveryStage, Stage, fast_path


def is_selectable(codec: Codec, slot: Slot, links: Sequence[Link], route: Route) -> bool:
    """Whether the state after this step is that before it, or one of the same form, element by element."""
    if slot.residual_data is not None and (codec.feedback == "off" or slot.in_sum_space != route.in_sum_space):
        return False  # a residual would be dropped, or be kept in another space
    return all(_selects(link) for link in links)


def _selects(link: Link) -> bool:
    stage, ctx = link
    if isinstance(stage, DeliveryStage):
        return False
    if type(stage).observe is Stage.observe:
        return True
    fast = fast_path(stage, ctx.spec)
    return fast is not None and fast.selects(ctx)
