"""`attach`: what it does depends on the kind of model that it is given."""

import os
import sys
import warnings
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from thinwire.core.plan import Plan, PlanLike
from thinwire.ddp.advice import check_optimizer
from thinwire.ddp.arguments import check_arguments
from thinwire.ddp.handle import Handle
from thinwire.ddp.hook import attach_ddp
from thinwire.ddp.models import check_whole, unwrapped
from thinwire.ddp.reduction import check_reduction
from thinwire.ddp.single_handle import SingleHandle
from thinwire.errors import CodecError, WorldError
from thinwire.planner.auto import choose_for
from thinwire.planner.auto_settings import AutoSettings

# Objects of frameworks that are no models, by their package, and the line that they need.
_FRONT_ENDS = {
    ("accelerate",): "handle = thinwire.integrations.accelerate.attach(accelerator, model, plan) after prepare",
    ("lightning", "pytorch_lightning"): (
        "Trainer(callbacks=[thinwire.integrations.lightning.ThinwireCallback(plan)]); with Fabric, attach to the model"
        " that fabric.setup returned"
    ),
    ("transformers",): (
        "trainer.add_callback(thinwire.integrations.transformers.ThinwireCallback(trainer, plan)) before train()"
    ),
}


def attach(
    model: nn.Module,
    plan: PlanLike | AutoSettings,
    *,
    seed: int = 0,
    start: int = 0,
    check: int = 0,
    scaler: Any = None,
    headroom: bool = False,
    lanes: int | None = None,
    timeout: timedelta | None = None,
    measure_every: int = 10,
    optimizer: Any = None,
    reduction: str | None = None,
    local_size: int | str = 1,
) -> Handle:
    """Compress the gradients of a model that several ranks train, from its next backward on.

    All ranks of the model's process group call it with equal arguments. A difference is an error that names the ranks.

    Args:
        model: The DistributedDataParallel model, also inside torch.compile or Lightning Fabric. It must not have
            another communication hook. Or a model to which `fully_shard` (FSDP2) was applied: with replicas, what they
            send to each other is compressed, and otherwise the reduce-scatter of gradients. In one process, a module
            that is not wrapped: nothing is compressed then, and the handle only counts steps, so that the same script
            runs there.
        plan: A preset or chain as text, a `Codec`, a mapping of parameter patterns to codecs, the path of a plan file,
            or a `Plan`. `"auto"` measures the link, the model and the codecs during the first steps, and chooses;
            `"auto(quality=balanced)"` or an `AutoSettings` says among what.
        seed: Seed of all random rounding. Equal seeds give equal results.
        start: Number of steps at the beginning that stay uncompressed.
        check: Compare the averaged gradients of all ranks every `check` steps. 0 compares never.
        scaler: The loop's `GradScaler`. Residuals then follow its loss scale.
        headroom: Send nothing and average nothing. The step time is then the best that any codec can reach; the model
            is useless afterwards.
        lanes: Number of threads that average buckets of DDP. Each has its own process group. None takes 2 for
            parameters on the CPU and 1 elsewhere. NCCL allows no more than 1.
        timeout: A peer that is silent, or does not call `attach`, for this long is an error with its rank. None takes
            the timeout of the model's group. While nothing is compressed, DDP itself averages, with the timeout of its
            group.
        measure_every: Steps between two measurements of `relative_error`. 0 measures never.
        optimizer: The optimizer that steps the model. A warning says where it does not go together with the plan:
            momentum in both, or Adam after a biased codec.
        reduction: `"ring"` sums what chains of transforms send, such as `gradiveq`, in a pipelined ring. None takes the
            cheapest way for each tensor.
        local_size: The number of ranks on each host, or `"auto"`. Above 1, gradients are summed inside hosts first and
            compressed only between them; each rank carries its share of the parameters, so that a host's link carries
            every number once. For DistributedDataParallel.

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
    check_optimizer(optimizer)
    inner = unwrapped(model)
    auto = AutoSettings.of(plan)
    parsed = check_reduction(reduction, Plan.parse("none" if auto is not None else plan))  # type: ignore[arg-type]
    options: dict[str, Any] = {
        "seed": seed,
        "start": start,
        "check": check,
        "scaler": scaler,
        "headroom": headroom,
        "lanes": lanes,
        "timeout": timeout,
        "measure_every": measure_every,
        "optimizer": optimizer,
        "reduction": reduction,
    }
    check_arguments(options)
    handle = _attached(model, inner, parsed, local_size, options)
    if isinstance(handle, SingleHandle):
        warnings.warn(
            "thinwire is attached to a model that one process trains alone: nothing is sent, so nothing is compressed.",
            RuntimeWarning,
            stacklevel=2,
        )
    if auto is not None:
        choose_for(handle, inner, auto, timeout)
    return handle


def _attached(model: nn.Module, inner: Any, parsed: Plan, local_size: int | str, options: dict[str, Any]) -> Handle:
    """The handle of this kind of model."""
    if isinstance(inner, DistributedDataParallel):
        return attach_ddp(inner, parsed, local_size=local_size, **options)
    if _is_fsdp(inner):
        from thinwire.fsdp.attach import attach_fsdp  # at use: torch's FSDP takes long to import

        if local_size != 1:
            raise CodecError(
                "local_size is for DistributedDataParallel; with FSDP, a mesh of two dimensions (replicate, shard) with"
                " the shards inside hosts sends every number once from a host."
            )
        return attach_fsdp(inner, parsed, **options)
    _check_alone(model, inner)
    return SingleHandle(inner, parsed, **{name: options[name] for name in ("seed", "start", "reduction")})


def _is_fsdp(model: Any) -> bool:
    """Whether `fully_shard` or its `replicate` was applied to the model or a part of it."""
    return isinstance(model, nn.Module) and "FSDPModule" in _fsdp_classes(model)


def _fsdp_classes(model: nn.Module) -> set[str]:
    """The names of torch's FSDP classes in a model; they are not imported, which takes long."""
    classes = {base for module in model.modules() for base in type(module).__mro__}
    return {each.__name__ for each in classes if each.__module__.startswith("torch.distributed.fsdp")}


def _check_alone(model: Any, inner: Any) -> None:
    """Refuse what is not a plain module in a world of one process, and say what to write."""
    kind = type(model).__name__
    if not isinstance(inner, nn.Module):
        raise WorldError(f"attach needs a DistributedDataParallel model; got {kind}. {_line_for(model)}")
    if type(inner).__module__.startswith("deepspeed"):
        raise WorldError(
            f"{kind} averages gradients by itself, and DeepSpeed has no place for a codec; train with"
            " DistributedDataParallel, or exchange weights instead of gradients: thinwire.attach_outer(...)."
        )
    if isinstance(inner, nn.DataParallel):
        raise WorldError(
            "DataParallel copies the model inside one process; start one process for each device with torchrun, and"
            " write model = DistributedDataParallel(model)."
        )
    if "FullyShardedDataParallel" in _fsdp_classes(inner):
        raise WorldError(
            f"the parameters of {kind} are sharded over the ranks, and thinwire does not support FSDP1"
            " (FullyShardedDataParallel); shard with torch.distributed.fsdp.fully_shard, or wrap the model with"
            " DistributedDataParallel instead."
        )
    check_whole(inner)
    ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else _started()
    if ranks > 1:
        raise WorldError(f"attach needs a DistributedDataParallel model; got {kind} on {ranks} ranks. {_way(inner)}")


def _line_for(given: Any) -> str:
    """What to write instead of `attach`, for what is no module."""
    root = type(given).__module__.partition(".")[0]
    for front, line in _FRONT_ENDS.items():
        if root in front:
            return f"Write {line}."
    return "Write handle = thinwire.attach(model, 'qsgd') with model = DistributedDataParallel(net)."


def _started() -> int:
    """The number of processes that torchrun says it has started."""
    said = os.environ.get("WORLD_SIZE", "1")
    return int(said) if said.isdecimal() else 1


def _way(model: nn.Module) -> str:
    """What to write before or instead of `attach`, for a plain module on several ranks."""
    if any(base.__name__ == "LightningModule" for base in type(model).__mro__):
        return (
            "In Lightning write Trainer(strategy='ddp', callbacks=[ThinwireCallback(plan)]) with the callback of"
            " thinwire.integrations.lightning."
        )
    accelerate = sys.modules.get("accelerate")
    if accelerate is not None and accelerate.PartialState._shared_state:
        said = "With Accelerate write model = accelerator.prepare(model) first, and attach to what it returns."
        if "transformers.trainer" in sys.modules:
            said += f" With the Trainer of transformers write {_FRONT_ENDS['transformers',]}."
        return said
    first = "" if dist.is_initialized() else "torch.distributed.init_process_group(), then "
    return (
        f"Write {first}model = DistributedDataParallel(model) first, or use"
        " thinwire.average_gradients(model, codec, state) in a loop of your own."
    )
