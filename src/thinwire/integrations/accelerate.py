"""Accelerate: compressed gradients after `prepare`, saved and restored with the accelerator's own state."""

from typing import Any

from torch import nn

from thinwire.core.plan import PlanLike
from thinwire.ddp.handle import Handle
from thinwire.ddp.single_handle import SingleHandle
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
        WorldError: The model is not what `prepare` returned, or this accelerator has another handle that is in use.
    """
    if not hasattr(accelerator, "register_save_state_pre_hook"):
        raise WorldError(
            f"attach needs the Accelerator first; got {type(accelerator).__name__}. Write"
            " thinwire.integrations.accelerate.attach(accelerator, model, plan)."
        )
    earlier: tuple[Handle, list[Any]] | None = getattr(accelerator, "_thinwire", None)
    if earlier is not None and not earlier[0].closed:
        raise WorldError(
            "this accelerator already saves the state of one thinwire handle; use one accelerator a model, or call"
            " close() of that handle first."
        )
    handle = attach_model(model, plan, **{"scaler": accelerator.scaler, **options})
    if isinstance(handle, SingleHandle):
        handle.count_when(lambda: bool(accelerator.sync_gradients))
    for hook in earlier[1] if earlier is not None else ():
        hook.remove()
    hooks = [
        accelerator.register_save_state_pre_hook(lambda models, weights, folder: write_state(handle, folder)),
        accelerator.register_load_state_pre_hook(lambda models, folder: read_state(handle, folder)),
    ]
    accelerator._thinwire = (handle, hooks)
    return handle
