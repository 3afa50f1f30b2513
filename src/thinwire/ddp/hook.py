"""Attaching to a DistributedDataParallel model, and the hook that DDP calls for each bucket."""

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from thinwire.core.plan import Plan
from thinwire.ddp.bucket_hook import compiled_reducer
from thinwire.ddp.ddp_handle import DDPHandle
from thinwire.ddp.models import check_parameters
from thinwire.ddp.names import parameter_names
from thinwire.ddp.unhooked import is_watched
from thinwire.errors import WorldError


def attach_ddp(model: DistributedDataParallel, plan: Plan, **options: Any) -> DDPHandle:
    """Compress the gradients of a DistributedDataParallel model; `options` are the arguments of `attach`."""
    _check_model(model)
    handle = DDPHandle(model, plan, **options)
    handle.hook.enter(model, thinwire_hook)
    return handle


def thinwire_hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations it does not know
    """Queue one bucket on a lane."""
    return state.on_bucket(bucket)


def _check_model(model: DistributedDataParallel) -> None:
    """Refuse what cannot work, with the way out."""
    check_parameters(parameter_names(model.module, model.parameters_to_ignore))
    owner = thinwire_hook.__qualname__ if is_watched(model) else None
    if model.mixed_precision is not None:
        owner = "mixed_precision="
    elif model._comm_hooks:
        owner = model._comm_hooks[0][0].__qualname__
    if owner is not None:
        way_out = (
            "call handle.use(...) on the handle you have"
            if owner == thinwire_hook.__qualname__
            else ("build the DDP model without it (for mixed precision use torch.autocast, which works with thinwire)")
        )
        raise WorldError(f"this model's hook slot is already taken by {owner}, and DDP has only one; {way_out}.")
    if getattr(model, "skip_all_reduce_unused_params", False):
        raise WorldError(
            "skip_all_reduce_unused_params=True hides buckets from hooks, so that a step would never end; leave it away"
            " (find_unused_parameters=True works)."
        )
    if getattr(model, "_use_python_reducer", False):
        raise compiled_reducer()
    if any(hasattr(p, "_in_backward_optimizers") for p in model.module.parameters()):
        raise WorldError("an optimizer that works inside backward takes DDP's hook slot; step it after backward.")
    for name, module in model.module.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            raise WorldError(
                f"{name or 'the model'} has sparse gradients, which thinwire cannot send; use sparse=False."
            )
