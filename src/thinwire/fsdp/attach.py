"""`attach` for a model that FSDP2 trains."""

from typing import Any

from torch import nn

from thinwire.core.plan import Plan
from thinwire.ddp.handle import Handle
from thinwire.errors import CodecError, WorldError
from thinwire.fsdp.alone import AloneHandle
from thinwire.fsdp.groups import mesh_of, parameter_groups
from thinwire.fsdp.handle import FSDPHandle
from thinwire.fsdp.scatter import ScatterHandle


def attach_fsdp(model: nn.Module, plan: Plan, **options: Any) -> Handle:
    """Compress between the replicas of a model, or in its reduce-scatter if there is one replica; in one process, not.

    Args:
        model: A model to which `fully_shard` or FSDP's `replicate` was applied.
        plan: What is compressed and how; patterns are matched with the names of parameters, conditions with the shapes
            of their shards.
        options: Those of `thinwire.attach`. There are no `lanes`: FSDP waits for each reduction, so that it is
            performed in the thread that calls it.

    Returns:
        The handle.

    Raises:
        WorldError: The ranks disagree, the model cannot be compressed, or this torch is unknown.
        CodecError: The plan or an option cannot work.
    """
    groups = parameter_groups(model)
    mesh = mesh_of(groups)
    if any(group.followed for group in groups):
        raise WorldError("this model already has a thinwire handle; call handle.use(...) on it, or handle.close().")
    if mesh.replicas is None and mesh.shards is None:
        return AloneHandle(model, plan, groups, mesh, **{key: options[key] for key in ("seed", "start", "reduction")})
    if mesh.replicas is None and options.get("check"):
        raise CodecError(
            "check compares what replicas get, and this model has one: each rank gets another shard; leave check away."
        )
    options.pop("lanes", None)
    kind = ScatterHandle if mesh.replicas is None else FSDPHandle
    return kind(model, plan, groups, mesh, **options)
