"""A FIFO thread with its own process group: rounds begin in the same order on every rank.

Collectives chained in the callbacks of futures run in whatever order the callbacks do, which differs between ranks
and ends in mismatched collectives. A lane performs one job after the other instead.
"""

import atexit
import gc
import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.errors import WorldError
from thinwire.worlds.distributed import Distributed
from thinwire.worlds.group import timeout_of

Job = Callable[[Distributed], None]
Jobs: TypeAlias = "queue.SimpleQueue[tuple[Job, Sequence[Promise]] | None]"

_OPEN: "weakref.WeakSet[Lane]" = weakref.WeakSet()
_FORGOTTEN: list[Distributed] = []  # of lanes that were collected and never closed
_MANY = 16  # open lanes from which it is worth looking for forgotten ones


class Lane:
    """Performs jobs in the order they were queued. After a failure every later job fails with the same cause."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device, timeout: timedelta | None) -> None:
        ranks = dist.get_process_group_ranks(group)
        # new_group would take the default of 30 minutes, whatever the user gave the model's group
        timeout = timeout or timeout_of(group, device)
        # if the model has a part of the ranks only, the others are not here to take part in making a group
        self._partial = len(ranks) < dist.get_world_size()
        own = dist.new_group(ranks, timeout=timeout, use_local_synchronization=self._partial)
        self.world = Distributed(own)
        self.world.share_presence(Distributed(group))
        self.broken: BaseException | None = None
        self._jobs: Jobs = queue.SimpleQueue()
        # A daemon, so that an exception in the main thread can always end the process; `close` joins it in order.
        args = (self._jobs, weakref.ref(self))
        self._thread = threading.Thread(target=_work, args=args, daemon=True, name="thinwire")
        self._thread.start()
        _OPEN.add(self)
        self._forget = weakref.finalize(self, _forget, self._jobs, self.world)

    def queue(self, job: Job, promises: Sequence["Promise"]) -> None:
        """Run the job and complete the futures of the promises. If the job fails, `broken` has the error."""
        if not self._thread.is_alive():
            raise WorldError(f"rank {self.world.rank}: this thinwire handle is closed; attach to a new DDP model.")
        self._jobs.put((job, promises))

    def close(self, wait: float = 5.0) -> None:
        """End the thread after the jobs in its queue. Wait for it at most `wait` seconds."""
        self._jobs.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(wait)

    def leave(self) -> None:
        """Close, and destroy the group. Torch names groups of a part of the ranks by the number of groups, and must not
        use a name twice: such a group stays until the process ends."""
        self.close()
        if self._thread.is_alive():
            return
        self._forget.detach()
        _OPEN.discard(self)
        self.world.close_connections()
        if not self._partial:
            _destroy(self.world)


def _forget(jobs: Jobs, world: Distributed) -> None:
    """End the thread of a lane that was collected; `end_forgotten` destroys its group.

    This may run on any thread at any moment, so that it only adds to queues.
    """
    jobs.put(None)
    _FORGOTTEN.append(world)


def end_forgotten(world: Distributed) -> None:
    """Destroy the groups of lanes that were collected on all ranks; every rank of `world` calls it.

    Ranks collect garbage at different times, and torch wants groups to be destroyed in one order. Groups of a part of
    the ranks only lose their connections (see `Lane.leave`).
    """
    if len(_OPEN) >= _MANY:
        gc.collect()  # models and their hooks refer to each other
    members, known = dist.get_process_group_ranks(world.group), dist.distributed_c10d._world.pg_map
    _FORGOTTEN[:] = [each for each in _FORGOTTEN if each.group in known]
    mine = {
        str(dist.distributed_c10d._world.pg_names[each.group]): each
        for each in _FORGOTTEN
        if each.group is not None and dist.get_process_group_ranks(each.group) == members
    }
    everywhere = set(mine).intersection(*world.gathered(list(mine), "attach"))
    for name in sorted(everywhere):
        _FORGOTTEN.remove(mine[name])
        mine[name].close_connections()
        if len(members) == dist.get_world_size():
            _destroy(mine[name])


def _destroy(world: Distributed) -> None:
    with suppress(Exception):  # the default group may be gone already, and this one with it
        dist.destroy_process_group(world.group)


class Promise:
    """The future of a buffer. It is made when the buffer is filled, and completed when a job has averaged it.

    On an accelerator, a job runs on its own stream, after what the caller's stream had queued when it was made.
    """

    def __init__(self, buffer: Tensor, lenient: bool = False) -> None:
        """`lenient`: if the job fails, only the lane has the error, and the future completes with the buffer."""
        self.buffer, self.lenient = buffer, lenient
        device = buffer.device
        self.ready: Any = None
        if device.type != "cpu":
            self.ready = torch.get_device_module(device).current_stream(device).record_event()
        devices: list[int | str | torch.device] | None = None if self.ready is None else [device]
        self.future: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)

    def keep(self) -> None:
        self.future.set_result(self.buffer)

    def fail(self, reason: Exception) -> None:
        if self.lenient:
            self.keep()
        else:
            error: Any = reason
            self.future.set_exception(error)


def _work(jobs: Jobs, lane: "weakref.ref[Lane]") -> None:
    while (item := jobs.get()) is not None:
        job, promises = item
        owner = lane()
        if owner is None:
            return
        try:
            if owner.broken is not None:
                raise WorldError(f"rank {owner.world.rank}: an earlier bucket failed ({owner.broken})")
            with _streams_behind(promises):
                job(owner.world)
                _keep(promises)  # here, so that waiting for the futures waits for the stream
        except Exception as reason:
            if owner.broken is None:
                owner.broken = reason
                owner.world.tell_failure(reason)
            _keep(promises, reason)
        del item, job, promises, owner  # a thread that waits must not keep buffers alive


def _keep(promises: Sequence[Promise], failure: Exception | None = None) -> None:
    for promise in promises:
        if failure is None:
            promise.keep()
        elif not promise.future.done():
            promise.fail(failure)


@contextmanager
def _streams_behind(promises: Sequence[Promise]) -> Iterator[None]:
    """A new stream of each accelerator, which begins when the buffers are filled."""
    with ExitStack() as entered:
        streams: dict[torch.device, Any] = {}
        for promise in promises:
            device = promise.buffer.device
            if promise.ready is None:
                continue
            if device not in streams:
                module = torch.get_device_module(device)
                streams[device] = module.Stream(device=device)
                entered.enter_context(module.stream(streams[device]))
            streams[device].wait_event(promise.ready)
            promise.buffer.record_stream(streams[device])
        yield


def group_count(group: dist.ProcessGroup | None) -> int:
    """How many groups this process has, if that decides the name of the next one (a part of the ranks); else 0."""
    partial = dist.get_world_size(group) < dist.get_world_size()
    return len(dist.distributed_c10d._world.pg_names) if partial else 0


@atexit.register
def _close_all() -> None:
    for lane in list(_OPEN):
        lane.close(wait=1.0)
