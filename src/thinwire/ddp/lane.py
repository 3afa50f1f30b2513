"""One FIFO thread with a process group of its own: rounds leave in the same order on every rank.

Collectives chained in the callbacks of futures run in whatever order the callbacks do, which differs between ranks
and ends in mismatched collectives. A lane performs one job after the other instead.
"""

import atexit
import queue
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.errors import WorldError
from thinwire.worlds.distributed import Distributed

Job = Callable[[Distributed], Tensor]
Jobs: TypeAlias = "queue.SimpleQueue[tuple[Job, torch.futures.Future[Tensor], Tensor | None] | None]"

_OPEN: "weakref.WeakSet[Lane]" = weakref.WeakSet()


class Lane:
    """Performs jobs in the order they were queued. After a failure every later job fails with the same cause."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device, timeout: timedelta | None) -> None:
        ranks = dist.get_process_group_ranks(group)
        # new_group would take the default of 30 minutes, whatever the user gave the model's group
        timeout = timeout or _timeout_of(group, device)
        # if the model has a part of the ranks only, the others are not here to take part in making a group
        self._partial = len(ranks) < dist.get_world_size()
        own = dist.new_group(ranks, timeout=timeout, use_local_synchronization=self._partial)
        self.world = Distributed(own)
        self.broken: BaseException | None = None
        self._jobs: Jobs = queue.SimpleQueue()
        # A daemon, so that an exception in the main thread can always end the process; `close` joins it in order.
        args = (self._jobs, weakref.ref(self))
        self._thread = threading.Thread(target=_work, args=args, daemon=True, name="thinwire")
        self._thread.start()
        _OPEN.add(self)
        weakref.finalize(self, self._jobs.put, None)  # a forgotten lane ends its thread

    def queue(self, job: Job, like: Tensor, on_failure: Tensor | None = None) -> "torch.futures.Future[Tensor]":
        """A future of what the job returns; `like` tells on which device.

        If the job fails, `broken` says why, and the future has `on_failure` or, without that, the exception.
        """
        if not self._thread.is_alive():
            raise WorldError(f"rank {self.world.rank}: this thinwire handle is closed; attach to a new DDP model.")
        devices: list[int | str | torch.device] | None = [like.device] if like.device.type != "cpu" else None
        future: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
        self._jobs.put((_on_stream(job, like), future, on_failure))
        return future

    def close(self, wait: float = 5.0) -> None:
        """End the thread; what is still queued is finished first, unless a peer keeps it waiting."""
        self._jobs.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(wait)

    def leave(self) -> None:
        """Close, and give up the group. Torch names groups of a part of the ranks by how many groups there are, and
        must not find a name that was used before: such a group stays until the process ends."""
        self.close()
        if not self._thread.is_alive() and not self._partial:
            with suppress(Exception):  # the default group may be gone already, and this one with it
                dist.destroy_process_group(self.world.group)


def _work(jobs: Jobs, lane: "weakref.ref[Lane]") -> None:
    while (item := jobs.get()) is not None:
        job, future, on_failure = item
        owner = lane()
        if owner is None:
            return
        try:
            if owner.broken is not None:
                raise WorldError(f"rank {owner.world.rank}: an earlier bucket failed ({owner.broken})")
            future.set_result(job(owner.world))
        except Exception as reason:
            owner.broken = owner.broken or reason
            if on_failure is not None:
                future.set_result(on_failure)
            else:
                error: Any = reason
                future.set_exception(error)
        del item, job, future, owner, on_failure


def _timeout_of(group: dist.ProcessGroup, device: torch.device) -> timedelta | None:
    try:
        options = getattr(group._get_backend(device), "options", None)
    except RuntimeError:  # a backend without this device
        return None
    found: timedelta | None = getattr(options, "_timeout", None)
    return found


def group_count(group: dist.ProcessGroup | None) -> int:
    """How many groups this process knows, where that decides the name of the next one (a part of the ranks)."""
    partial = dist.get_world_size(group) < dist.get_world_size()
    return len(dist.distributed_c10d._world.pg_names) if partial else 0


def _on_stream(job: Job, like: Tensor) -> Job:
    """On an accelerator, a job runs on a stream of its own behind what the caller's stream has queued so far."""
    if like.device.type == "cpu":
        return job
    module = torch.get_device_module(like.device)
    ready = module.current_stream(like.device).record_event()

    def run(world: Distributed) -> Tensor:
        stream = module.Stream(device=like.device)
        with module.stream(stream):
            stream.wait_event(ready)
            result = job(world)
            result.record_stream(stream)
            return result

    return run


@atexit.register
def _close_all() -> None:
    for lane in list(_OPEN):
        lane.close(wait=1.0)
