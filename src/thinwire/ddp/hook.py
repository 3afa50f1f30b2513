"""`attach`, and the hook that DistributedDataParallel calls for each bucket."""

from datetime import timedelta
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from thinwire.core.plan import Plan, PlanLike
from thinwire.ddp.advice import check_optimizer
from thinwire.ddp.bucket_hook import compiled_reducer
from thinwire.ddp.handle import Handle
from thinwire.ddp.models import check_parameters, find_ddp
from thinwire.ddp.names import parameter_names
from thinwire.ddp.unhooked import is_watched
from thinwire.errors import CodecError, WorldError

__all__ = ["Handle", "PlanLike", "attach"]


def attach(
    model: nn.Module,
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
    optimizer: Any = None,
) -> Handle:
    """Compress the gradients of a DistributedDataParallel model from its next backward on.

    All ranks of the model's process group call it with equal arguments. A difference is an error that names the ranks.

    Args:
        model: The DDP model, also inside torch.compile or Lightning Fabric. It must not have another communication
            hook.
        plan: A preset or chain as text, a `Codec`, a mapping of parameter patterns to codecs, the path of a plan file,
            or a `Plan`.
        seed: Seed of all random rounding. Equal seeds give equal results.
        start: Number of steps at the beginning that stay uncompressed.
        check: Compare the averaged gradients of all ranks every `check` steps. 0 compares never.
        scaler: The loop's `GradScaler`. Residuals then follow its loss scale.
        headroom: Send nothing and average nothing. The step time is then the best that any codec can reach; the model
            is useless afterwards.
        lanes: Number of threads that average buckets. Each has its own process group.
        timeout: A peer that is silent, or does not call `attach`, for this long is an error with its rank. None takes
            the timeout of the model's group. While nothing is compressed, DDP itself averages, with the timeout of its
            group.
        measure_every: Steps between two measurements of `relative_error`. 0 measures never.
        optimizer: The optimizer that steps the model. A warning says where it does not go together with the plan:
            momentum in both, or Adam after a biased codec.

    Returns:
        A handle that reports metrics, changes the codec, saves and loads.

    Raises:
        WorldError: The ranks disagree, or the model cannot have a hook.
        CodecError: The plan or an option cannot work.

    Examples:
        >>> handle = thinwire.attach(ddp_model, "qsgd")
        >>> ddp_model(inputs).sum().backward()  # the gradients are averaged, compressed
        >>> handle.metrics().step
        0
    """
    model = find_ddp(model)
    _check_model(model)
    check_optimizer(optimizer)
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
        optimizer=optimizer,
    )
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
