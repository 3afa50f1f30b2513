"""What worlds and transports must know about a process group."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.distributed as dist

from thinwire.errors import CodecError, WorldError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    GroupLike: TypeAlias = dist.ProcessGroup | DeviceMesh | None


def process_group(group: "GroupLike") -> dist.ProcessGroup | None:
    """The process group that a caller means by a group or a mesh of one dimension; None: the default one."""
    mesh: Any = group
    if not hasattr(mesh, "get_group"):
        return mesh  # type: ignore[no-any-return]
    if mesh.ndim != 1:
        raise CodecError(
            f"group must be a mesh of one dimension, such as mesh['replicate']; got {mesh.ndim} dimensions."
        )
    return mesh.get_group()  # type: ignore[no-any-return]


class Group:
    """A process group and this process's place in it."""

    def __init__(self, handle: dist.ProcessGroup | None) -> None:
        """`handle`: the process group; None: the default one."""
        if not (dist.is_available() and dist.is_initialized()):
            raise WorldError(
                "torch.distributed is not initialised: call torch.distributed.init_process_group() first,"
                " or use thinwire.simulate() in one process."
            )
        self.handle = handle
        self.rank = dist.get_rank(handle)
        self.ranks = dist.get_world_size(handle)

    @property
    def process_group(self) -> dist.ProcessGroup:
        group = self.handle or dist.group.WORLD
        assert group is not None  # `__init__` has checked it
        return group

    @property
    def control_device(self) -> torch.device:
        """Where small control tensors must be for this backend."""
        name = str(dist.get_backend(self.handle))
        return torch.device("cuda", torch.cuda.current_device()) if "nccl" in name else torch.device("cpu")

    @property
    def timeout(self) -> float:
        """Seconds for which the group waits for a peer."""
        return (timeout_of(self.process_group, self.control_device) or dist.default_pg_timeout).total_seconds()

    def global_rank(self, rank: int) -> int:
        return rank if self.handle is None else dist.get_global_rank(self.handle, rank)


def devices_of(backend: str, group: dist.ProcessGroup | None) -> set[str]:
    """Types of the devices whose tensors this backend sends; a group may have one backend for each type."""
    served = (part.partition(":") for part in str(dist.get_backend_config(group)).split(","))
    return {device for device, _, name in served if name == backend}


def timeout_of(group: dist.ProcessGroup, device: torch.device) -> timedelta | None:
    """How long the group waits for a peer, if its backend shows it."""
    try:
        options = getattr(group._get_backend(device), "options", None)
    except RuntimeError:  # a backend without this device
        return None
    found: timedelta | None = getattr(options, "_timeout", None)
    return found
