"""`attach`, and the hook that DistributedDataParallel calls for each bucket."""

from datetime import timedelta
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from thinwire.core.plan import Plan, PlanLike
from thinwire.ddp.handle import Handle, compiled_reducer
from thinwire.ddp.watching import is_watched
from thinwire.errors import CodecError, WorldError

__all__ = ["Handle", "PlanLike", "attach"]


def attach(
    model: DistributedDataParallel,
    plan: PlanLike,
    *,
    seed: int = 0,
    start: int = 0,
    check: int = 0,
    scaler: Any = None,
    headroom: bool = False,
    lanes: int = 2,
    timeout: timedelta | None = None,
    measure_every: int = 10,
) -> Handle:
    """Compress the gradients of a DistributedDataParallel model from its next backward on.

    `plan` is a preset or chain as text, a Codec, a mapping of parameter patterns to codecs, a file, or a Plan.
    `start` leaves the first steps uncompressed; `check=N` compares the results of all ranks every N steps;
    `scaler` is the GradScaler whose loss scale the residuals must follow; `headroom` sends nothing at all, to show
    the best that any codec could reach. A peer that stays silent, or does not come to `attach`, for `timeout`
    (that of the model's group if None) is an error with its rank; while nothing is compressed, DDP averages by
    itself, and its group's timeout holds. The handle reports, swaps codecs, saves and loads.
    """
    _check_model(model)
    for name, value, least in (("start", start, 0), ("check", check, 0), ("lanes", lanes, 1)):
        if value < least:
            raise CodecError(f"{name} must be at least {least}; got {value}.")
    handle = Handle(
        model,
        Plan.parse(plan),
        seed=seed,
        start=start,
        check=check,
        scaler=scaler,
        headroom=headroom,
        lanes=lanes,
        timeout=timeout,
        measure_every=measure_every,
    )
    handle.enter(model, thinwire_hook)
    return handle


def thinwire_hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations it does not know
    """Queue one bucket on a lane."""
    return state.on_bucket(bucket)


def _check_model(model: Any) -> None:
    """Refuse what cannot work, with the way out."""
    if not isinstance(model, DistributedDataParallel):
        inside = isinstance(getattr(model, "_orig_mod", None), DistributedDataParallel)
        raise WorldError(
            f"attach needs a DistributedDataParallel model; got {type(model).__name__}. "
            + (
                "Attach before torch.compile(ddp_model)."
                if inside
                else "Wrap it first, or use thinwire.average_gradients(model, codec, state) in a loop of your own."
            )
        )
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
