"""PyTorch's own communication hooks, with a clock on how long the step waits for them."""

import time
from typing import Any

import torch
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from thinwire_lab.report.record import Layer

FIRST_POWERSGD_STEP = 2  # the earliest that PyTorch allows


class Timed:
    """A hook and the times of the last step."""

    def __init__(self, hook: Any, state: Any) -> None:
        self.hook, self.state = hook, state
        self.ready = self.finished = 0.0  # the last gradient was there, the last average was there

    def metrics(self) -> dict[str, Any]:
        return {"exposed_seconds": max(0.0, self.finished - self.ready)} if self.ready else {}

    def layers(self) -> list[Layer]:
        return []

    def close(self) -> None:
        """Nothing runs on."""


def timed_hook(model: DistributedDataParallel, name: str, rank: int) -> Timed:
    """Register the baseline of this name; plain DDP has no hook, hence no times."""
    if name == "ddp":
        return Timed(None, None)
    if name == "torch-powersgd":
        state = powerSGD_hook.PowerSGDState(
            process_group=None, matrix_approximation_rank=rank, start_powerSGD_iter=FIRST_POWERSGD_STEP
        )
        timed = Timed(powerSGD_hook.powerSGD_hook, state)
    else:
        hooks = {"torch-fp16": default_hooks.fp16_compress_hook, "torch-bf16": default_hooks.bf16_compress_hook}
        timed = Timed(hooks[name], None)
    model.register_comm_hook(timed, _hook)
    return timed


def _hook(timed, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations it does not know
    if bucket.is_last():
        timed.ready = time.perf_counter()

    def finish(future: torch.futures.Future[Tensor]) -> Tensor:
        timed.finished = time.perf_counter()
        return future.value()

    return timed.hook(timed.state, bucket).then(finish)
