"""Which models thinwire can work with, and what is inside their wrappers."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from thinwire.core.inputs import check_dense
from thinwire.errors import WorldError

# torch.compile and Lightning Fabric keep the model that they wrap under these names. Fabric also keeps the model from
# before it was wrapped, so that its attributes must not be searched for any DDP model.
_WRAPPED = ("_orig_mod", "_forward_module")


def unwrapped(model: Any) -> Any:
    """What is inside the wrappers of torch.compile and Lightning Fabric, in whatever order they come."""
    inner = model
    while isinstance(inner, nn.Module) and not isinstance(inner, DistributedDataParallel):
        children = inner._modules  # not getattr: wrappers answer for attributes of what they wrap
        wrapped = next((children[name] for name in _WRAPPED if children.get(name) is not None), None)
        if wrapped is None:
            break
        inner = wrapped
    return inner


def check_whole(model: nn.Module) -> None:
    """Refuse a model whose parameters are sharded: a mean over the ranks would mix different shards."""
    sharded = any(hasattr(p, "to_local") for p in model.parameters()) or any(
        base.__module__.startswith("torch.distributed.fsdp") for m in model.modules() for base in type(m).__mro__
    )
    if sharded:
        raise WorldError(
            f"the parameters of {type(model).__name__} are sharded over the ranks, and a mean over the ranks would mix"
            " different shards; for FSDP2 (fully_shard) write handle = thinwire.attach(model, codec), or wrap the model"
            " with DistributedDataParallel instead; thinwire does not support FSDP1 or tensor parallelism."
        )


def check_parameters(parameters: Iterable[tuple[str, Tensor]]) -> None:
    for name, parameter in parameters:
        check_dense(f"the parameter {name}", parameter)
