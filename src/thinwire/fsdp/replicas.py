"""A process group whose all-reduce compresses, in the place of the one that FSDP has for its replicas."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.errors import WorldError


class ReplicaGroup(dist.ProcessGroup):
    """The ranks that have the same shard. FSDP calls `allreduce` from its backward pass, on the stream it waits for."""

    def __init__(self, inner: dist.ProcessGroup, reduce: Callable[[Tensor, Any], None]) -> None:
        """`reduce` replaces a flat buffer by its sum or mean over the ranks, as the operation that it is given says."""
        super().__init__(inner.rank(), inner.size())  # type: ignore[call-arg]  # without a store: nothing is sent by it
        self.inner, self._reduce = inner, reduce

    def getBackendName(self) -> str:  # torch calls it so
        return "thinwire"

    def allreduce(self, tensors: Any, opts: Any = None, *unused: Any) -> Any:
        for tensor in tensors:
            self._reduce(tensor, opts.reduceOp)
        done: Any = torch.futures.Future()
        done.set_result(tensors)
        return torch._C._distributed_c10d._create_work_from_future(done)  # type: ignore[attr-defined]


def is_sum(op: Any) -> bool:
    """Whether FSDP asks for a sum; False: for a mean. All other operations are refused."""
    if op == dist.ReduceOp.SUM:
        return True
    if op == dist.ReduceOp.AVG:
        return False
    raise WorldError(
        f"FSDP asks for the reduction {getattr(op, 'op', op).name}, which thinwire cannot take of compressed gradients;"
        " leave out set_gradient_divide_factor, or also call set_force_sum_reduction_for_comms(True)."
    )
