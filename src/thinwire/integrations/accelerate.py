"""Accelerate: compressed gradients after `prepare`, saved and restored with the accelerator's own state."""

from typing import Any

from torch import nn

from thinwire.core.plan import PlanLike
from thinwire.ddp.handle import Handle
from thinwire.dispatch import attach as attach_model
from thinwire.errors import WorldError
from thinwire.integrations.rank_files import read_state, write_state


def attach(accelerator: Any, model: nn.Module, plan: PlanLike, **options: Any) -> Handle:
    """Compress the gradients of a model that `accelerator.prepare` has returned.

    `accelerator.save_state` then writes the state of every rank beside its own files, and `accelerator.load_state`
    restores it. Gradient accumulation and the scaler of Accelerate stay as they are.

    Args:
        accelerator: The `accelerate.Accelerator` that prepared the model.
        model: What `accelerator.prepare` returned for the model.
        plan: As in `thinwire.attach`.
        options: The other arguments of `thinwire.attach`; `scaler` is that of the accelerator.

    Returns:
        The handle of `thinwire.attach`. Call its `close` when training ends.

    Raises:
        WorldError: The model is not what `prepare` returned, or this accelerator has a handle already.
    """
    if getattr(accelerator, "_thinwire", False):
        raise WorldError(
            "this accelerator already saves the state of one thinwire handle; use one accelerator a model."
        )
    handle = attach_model(model, plan, **{"scaler": accelerator.scaler, **options})
    accelerator._thinwire = True
    accelerator.register_save_state_pre_hook(lambda models, weights, folder: write_state(handle, folder))
    accelerator.register_load_state_pre_hook(lambda models, folder: read_state(handle, folder))
    return handle
