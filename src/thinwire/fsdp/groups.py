"""Torch's parameter groups of FSDP2: what `fully_shard` reduces together, and where thinwire enters.

All that thinwire reads of torch's private attributes is in this file. Every one is looked for in `attach`, and a
reduction that does not come here is an error: nothing is sent uncompressed in silence.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from thinwire.core.inputs import check_dense
from thinwire.ddp.engine import NamedGradient
from thinwire.ddp.names import parameter_names
from thinwire.errors import WorldError

_OF_GROUPS = ("fsdp_params", "mesh_info", "post_backward", "reduce_grads", "all_reduce_grads", "_reduce_scatter_comm")
_OF_PARAMETERS = ("sharded_param", "padded_sharded_param_size", "unsharded_accumulated_grad", "is_dtensor")


class Mesh(NamedTuple):
    """Where the parameters of a model lie: over replicas, each of which is split into shards."""

    ranks: tuple[int, ...]  # of the whole mesh
    replicas: dist.ProcessGroup | None  # the ranks that have the same shard; None: there is one replica
    shards: dist.ProcessGroup | None  # the ranks of this replica; None: parameters are whole

    @property
    def shard(self) -> tuple[int, int]:
        """The number of this rank's shard, and how many there are."""
        return (0, 1) if self.shards is None else (self.shards.rank(), self.shards.size())

    @property
    def replica(self) -> tuple[int, int]:
        """The number of this rank's replica, and how many there are."""
        return (0, 1) if self.replicas is None else (self.replicas.rank(), self.replicas.size())


class ParameterGroup:
    """The parameters that FSDP reduces together."""

    def __init__(self, inner: Any, names: dict[int, str]) -> None:
        """`names`: of the parameters of the model, by id."""
        self.inner = inner
        _expect(inner, *_OF_GROUPS)
        self.members: list[tuple[str, Any]] = []
        for member in inner.fsdp_params:
            _expect(member, *_OF_PARAMETERS)
            if id(member.sharded_param) not in names and hasattr(member, "reset_sharded_param"):
                # somebody has set other parameters since, as `from_pretrained` of transformers does; FSDP does this in
                # its first forward pass
                member.reset_sharded_param()
            if id(member.sharded_param) not in names:
                raise WorldError(
                    "a parameter that fully_shard manages is not among the model's; attach to the whole model, outside"
                    " of its forward and backward passes."
                )
            self.members.append((names[id(member.sharded_param)], member))
        self.followed = "post_backward" in inner.__dict__  # by another handle
        self._original = inner.post_backward
        self._comm = inner._reduce_scatter_comm

    @property
    def mesh_info(self) -> Any:
        return self.inner.mesh_info

    def layout(self) -> list[tuple[str, Tensor]]:
        """The shards of the parameters that are trained, as all ranks have them: the last ones are filled up."""
        return [
            (name, torch.empty(m.padded_sharded_param_size, dtype=m.sharded_param.dtype, device="meta"))
            for name, m in self.members
            if m.sharded_param.requires_grad
        ]

    def reduced(self) -> list[tuple[str, Any]]:
        """The parameters whose gradients FSDP is about to reduce, in the order of its buffer."""
        also_unused = getattr(self.inner, "reduce_scatter_unused_params", False)
        # torch 2.15 sorts them, and adds those that earlier micro-batches have reduced inside this replica
        order = getattr(self.inner, "_reduce_scatter_param_indices", range(len(self.members)))
        earlier = getattr(self.inner, "_get_partial_reduce_grad", lambda member: None)
        ordered = [self.members[at] for at in order]
        return [(name, m) for name, m in ordered if _has_gradient(m, also_unused) or earlier(m) is not None]

    def gradients(self, buffer: Tensor, reduced: Sequence[tuple[str, Any]]) -> list[NamedGradient]:
        """Views of a flat buffer that has this rank's shards of these parameters, one behind the other."""
        pieces = self.pieces(buffer, reduced)
        return [NamedGradient(name, x, _weights(m)) for (name, m), x in zip(reduced, pieces, strict=True)]

    def pieces(self, buffer: Tensor, reduced: Sequence[tuple[str, Any]]) -> list[Tensor]:
        sizes: list[torch.Size] = [m.padded_sharded_param_size for _, m in reduced]
        numel = sum(size.numel() for size in sizes)
        if buffer.numel() != numel:
            raise WorldError(
                f"FSDP reduces {buffer.numel()} elements, and the parameters that have a gradient have {numel}, so that"
                f" thinwire cannot tell whose they are; torch {torch.__version__} does this in another way than the"
                " versions that thinwire knows (2.9 to 2.15)."
            )
        pieces = torch.split(buffer, [size.numel() for size in sizes])
        return [piece.view(size) for size, piece in zip(sizes, pieces, strict=True)]

    def replace_replicas(self, group: dist.ProcessGroup) -> None:
        """From now on FSDP reduces over this group between replicas."""
        self.mesh_info.replicate_process_group = group
        if getattr(self.inner, "_all_reduce_process_group", group) is not group:
            raise unknown_torch("another group of replicas")

    def replace_reduce_scatter(self, comm: Any) -> None:
        """From now on FSDP reduces over shards with this."""
        self.inner._reduce_scatter_comm = comm

    @property
    def reduce_scatter(self) -> Any:
        return self._comm

    def follow(self, enter: Callable[["ParameterGroup"], Callable[[], None]]) -> None:
        """Call `enter` before FSDP reduces this group, and what it returns afterwards."""

        def post_backward(*unused: Any) -> Any:
            leave = enter(self)
            result = self._original(*unused)
            leave()
            return result

        self.inner.post_backward = post_backward

    def restore(self, replicas: dist.ProcessGroup | None) -> None:
        """Leave the reductions to FSDP again."""
        self.inner.__dict__.pop("post_backward", None)
        self.inner._reduce_scatter_comm = self._comm
        if replicas is not None:
            self.mesh_info.replicate_process_group = replicas


class Passes:
    """The backward passes of a model as FSDP counts them: one, whatever activation checkpointing repeats inside."""

    def __init__(self, model: nn.Module) -> None:
        self._states = [*dict.fromkeys(_states(model))]
        for state in self._states:
            _expect(state, "_root_post_backward_final_callback")

    def follow(self, ended: Callable[[], None]) -> None:
        """Call `ended` when FSDP has done with a pass."""
        for state in self._states:
            state._root_post_backward_final_callback = _then(state._root_post_backward_final_callback, ended)

    def restore(self) -> None:
        for state in self._states:
            state.__dict__.pop("_root_post_backward_final_callback", None)


def parameter_groups(model: nn.Module) -> list[ParameterGroup]:
    """All parameter groups of a model, in the order of its modules."""
    names = {id(p): name for name, p in parameter_names(model)}
    found: dict[int, ParameterGroup] = {}
    for inner in _inner_groups(model):
        if id(inner) not in found:
            found[id(inner)] = ParameterGroup(inner, names)
    groups = [group for group in found.values() if group.members]
    for group in groups:
        _check_members(group)
    return groups


def mesh_of(groups: Sequence[ParameterGroup]) -> Mesh:
    """The mesh that all groups have in common."""
    if not groups:
        raise WorldError(
            "fully_shard manages no parameter of this model; apply it to the model, too, or leave out ignored_params."
        )
    meshes = [_mesh(group.mesh_info) for group in groups]
    if any(each != meshes[0] for each in meshes):
        raise WorldError(
            "the modules of this model are sharded over different meshes, and thinwire compresses over one; pass the"
            " same mesh= to every fully_shard."
        )
    return meshes[0]


def unknown_torch(what: str) -> WorldError:
    """The error for a torch whose FSDP works in another way."""
    return WorldError(
        f"FSDP of torch {torch.__version__} has {what} where thinwire enters, so that gradients would travel"
        " uncompressed; use a version that thinwire knows (2.9 to 2.15), or train without thinwire."
    )


def _then(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def both() -> None:
        first()
        second()

    return both


def _states(model: nn.Module) -> Iterator[Any]:
    for module in model.modules():
        if isinstance(module, FSDPModule):
            _expect(module, "_get_fsdp_state")
            yield module._get_fsdp_state()


def _inner_groups(model: nn.Module) -> Iterator[Any]:
    for state in _states(model):
        if hasattr(state, "_fsdp_param_groups"):
            yield from state._fsdp_param_groups
        else:  # torch 2.9
            _expect(state, "_fsdp_param_group")
            yield from [state._fsdp_param_group] if state._fsdp_param_group is not None else []


def _expect(owner: Any, *names: str) -> None:
    for name in names:
        if not hasattr(owner, name):
            raise unknown_torch(f"no {type(owner).__name__}.{name}")


def _mesh(info: Any) -> Mesh:
    _expect(info, "mesh")
    replicas, shards = getattr(info, "replicate_process_group", None), getattr(info, "shard_process_group", None)
    if replicas is None and getattr(info, "replicate_mesh_dim", None) is not None:
        raise unknown_torch(f"no {type(info).__name__}.replicate_process_group")
    if replicas is None and shards is None:
        raise unknown_torch(f"no {type(info).__name__}.shard_process_group")
    return Mesh(tuple(info.mesh.mesh.flatten().tolist()), *(_several(group) for group in (replicas, shards)))


def _several(group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """A group of one rank reduces nothing: a mesh of (1, N) has no replicas."""
    return None if group is None or group.size() == 1 else group


def _check_members(group: ParameterGroup) -> None:
    for name, member in group.members:
        if member.is_dtensor:
            raise WorldError(
                f"{name} was a DTensor before fully_shard (tensor parallelism), which thinwire does not support; it"
                " compresses between replicas and shards of FSDP only."
            )
        check_dense(f"the parameter {name}", member.sharded_param.to_local())


def _has_gradient(member: Any, also_unused: bool) -> bool:
    unsharded = getattr(member, "_unsharded_param", None)
    if unsharded is None:
        return False
    accumulated = member.unsharded_accumulated_grad is not None
    return accumulated or unsharded.grad is not None or (also_unused and unsharded.requires_grad)


def _weights(member: Any) -> Tensor:
    """This rank's shard of a parameter, filled up with zeros as its gradient is."""
    local: Tensor = member.sharded_param.to_local().detach()
    if local.shape == member.padded_sharded_param_size:
        return local
    padded = local.new_zeros(member.padded_sharded_param_size)
    padded[: local.shape[0]] = local
    return padded
