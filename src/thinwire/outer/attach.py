"""`attach_outer`."""

import sys
import warnings
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from thinwire.core.inputs import check_floats
from thinwire.core.plan import PlanLike
from thinwire.ddp.arguments import check_arguments
from thinwire.ddp.names import parameter_names
from thinwire.errors import CodecError, WorldError
from thinwire.outer.handle import OuterHandle
from thinwire.outer.optimizers import OuterLike
from thinwire.outer.settings import BUFFERS, OuterSettings
from thinwire.outer.steps import check_free
from thinwire.outer.weights import local
from thinwire.worlds.group import Group, process_group


def attach_outer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    codec: PlanLike = "none",
    *,
    every: int | None = None,
    outer: OuterLike | None = None,
    fragments: int | None = None,
    overlap: int | None = None,
    mix: float | None = None,
    group: Any = None,
    buffers: str = "average",
    seed: int = 0,
    check: int = 0,
    scaler: Any = None,
    timeout: timedelta | None = None,
    measure_every: int = 10,
) -> OuterHandle:
    """Let every rank train alone for some steps, then exchange compressed differences of weights, and so on.

    After every `every` steps of the optimizer, each rank sends what its weights have moved by since the last exchange.
    The outer optimizer takes the mean of that for a gradient and moves the common weights, from which all ranks go on.
    The loop stays as it is. All ranks of the group call `attach_outer` with equal arguments; the weights of rank 0,
    frozen ones too, are taken by all.

    Args:
        model: A plain module on every rank, or a model that DDP or FSDP2 trains inside a host; then give `group`.
        optimizer: The optimizer of the loop. Of several, a list: steps of the last one count.
        codec: A preset (`"localsgd"`, `"diloco"`, `"sparseloco"`, `"streaming-diloco"`), also with options
            (`"diloco(every=50)"`), or what `attach` takes for a plan. A preset brings the settings below; those that
            are given replace them.
        every: Inner steps in a round; 30 without a preset.
        outer: The outer optimizer: `"sgd(lr=1)"`, `"nesterov(lr=0.7, momentum=0.9)"` (the default), or a function that
            makes a `torch.optim.Optimizer` of a list of tensors.
        fragments: Number of groups of layers, of about equal bytes. Each is exchanged once in a round, in turn.
        overlap: Further inner steps during which an exchange runs in the background before its result is applied.
        mix: Weight of the common weights when they are applied; the rest is that of the rank's own weights.
        group: The process group, or the one-dimensional DeviceMesh, of the ranks that exchange; None takes all ranks.
        buffers: `"average"` takes the mean of floating-point buffers that changed, once in a round; `"broadcast"` takes
            all that changed from rank 0; `"local"` leaves them alone.
        seed: Seed of all random rounding.
        check: Compare the common weights of all ranks after every `check` exchanges. 0 compares never.
        scaler: The loop's `GradScaler`. Steps that it skips then count, so that all ranks come to a round together.
        timeout: A peer that is silent for this long is an error with its rank; None takes the timeout of the group. A
            rank waits for slower ones for at most this long.
        measure_every: Exchanges between two measurements of `relative_error`. 0 measures never.

    Returns:
        A handle that reports metrics, changes the codec, saves and loads.

    Raises:
        WorldError: The ranks disagree, or the model cannot be trained so.
        CodecError: The codec or a setting cannot work.

    Examples:
        >>> handle = thinwire.attach_outer(net, optimizer, "qsgd(bits=4)", every=2)
        >>> for _ in range(2):
        ...     optimizer.zero_grad()
        ...     net(inputs).sum().backward()
        ...     optimizer.step()  # after the second one, the weights are averaged
        >>> handle.metrics().step
        2
    """
    given = {"every": every, "outer": outer, "fragments": fragments, "overlap": overlap, "mix": mix}
    settings = OuterSettings.of(codec, given)
    if buffers not in BUFFERS:
        raise CodecError(f"buffers must be one of {', '.join(BUFFERS)}; got {buffers!r}.")
    check_arguments(
        {"seed": seed, "check": check, "scaler": scaler, "timeout": timeout, "measure_every": measure_every}
    )
    if not isinstance(model, nn.Module):
        raise CodecError(f"attach_outer needs a torch.nn.Module; got {type(model).__name__}.")
    optimizers = _optimizers(optimizer)
    check_free(optimizers)
    where = process_group(group)
    if where is not None and not isinstance(where, dist.ProcessGroup):
        raise CodecError(
            f"group must be a ProcessGroup that has this rank, or a one-dimensional DeviceMesh; got {where!r}."
        )
    Group(where)  # refuses processes without torch.distributed
    _check_model(model, where)
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    return OuterHandle(
        model,
        _trained(inner, optimizers),
        optimizers,
        settings,
        group=where,
        buffers=buffers,
        seed=seed,
        check=check,
        scaler=scaler,
        timeout=timeout,
        measure_every=measure_every,
    )


def _optimizers(given: Any) -> list[torch.optim.Optimizer]:
    """The optimizers, without what Accelerate and Lightning wrap around them: their hooks are never called."""
    listed = list(given) if isinstance(given, (list, tuple)) else [given]
    plain = []
    for each in listed:
        while isinstance(inner := getattr(each, "optimizer", None), torch.optim.Optimizer):
            each = inner
        plain.append(each)
    strange = [each for each in plain if not isinstance(each, torch.optim.Optimizer)]
    if strange or not plain:
        raise CodecError(
            f"optimizer must be a torch.optim.Optimizer or a list; got {type((strange or [given])[0]).__name__}."
        )
    return plain


def _check_model(model: nn.Module, group: dist.ProcessGroup | None) -> None:
    """Refuse what cannot work: ranks that average already, and shards of different parts of a tensor."""
    between = set(dist.get_process_group_ranks(group or dist.group.WORLD))
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # it takes long to import
    for module in model.modules():
        if fsdp is not None and isinstance(module, fsdp.FullyShardedDataParallel):
            raise WorldError(
                "FullyShardedDataParallel hides where its parameters are; shard the model with"
                " torch.distributed.fsdp.fully_shard (FSDP2), and pass group=mesh['replicate']."
            )
        if isinstance(module, DistributedDataParallel) and _shared(module.process_group, between):
            raise WorldError(
                "this DistributedDataParallel model averages gradients over ranks that attach_outer would exchange;"
                " pass the plain module, or give DDP the group of a host and attach_outer(group=) the ranks between"
                " hosts that have the same place in theirs."
            )
    for name, parameter in model.named_parameters():
        mesh: Any = getattr(parameter, "device_mesh", None)
        for dimension in range(0 if mesh is None else mesh.ndim):
            if not _shared(mesh.get_group(dimension), between):
                continue
            if parameter.placements[dimension].is_shard():  # type: ignore[attr-defined]
                raise WorldError(
                    f"{name} is sharded over ranks that attach_outer would exchange, and a mean would mix different"
                    " shards; pass group=mesh['replicate'], the mesh dimension whose ranks have the same shards."
                )
            raise WorldError(
                f"FSDP2 averages gradients of {name} over ranks that attach_outer would exchange; give fully_shard the"
                " dimension inside a host alone, mesh['shard'], and attach_outer(group=mesh['replicate'])."
            )


def _shared(group: dist.ProcessGroup, between: set[int]) -> bool:
    return len(between & set(dist.get_process_group_ranks(group))) > 1


def _trained(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> list[tuple[str, Tensor]]:
    held = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    wanted = [(name, p) for name, p in parameter_names(model) if p.requires_grad]
    trained: list[tuple[str, Tensor]] = [(name, p) for name, p in wanted if id(p) in held]
    left = [name for name, p in wanted if id(p) not in held]
    if not trained:
        raise CodecError(
            "no trained parameter of the model is one of the optimizer's; pass the optimizer of this model."
        )
    if left:
        warnings.warn(
            f"{len(left)} parameters of the model ({', '.join(left[:4])}{', ...' if len(left) > 4 else ''}) are in none"
            " of the given optimizers and are not exchanged; give all optimizers as a list, or freeze what is not"
            " trained with requires_grad_(False).",
            RuntimeWarning,
            stacklevel=3,
        )
    for name, parameter in trained:
        check_floats(f"the parameter {name}", local(parameter))
    return trained
