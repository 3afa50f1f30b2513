"""A FIFO thread with its own process group: rounds begin in the same order on every rank.

Collectives chained in the callbacks of futures run in whatever order the callbacks do, which differs between ranks
and ends in mismatched collectives. A lane performs one job after the other instead.
"""

import atexit
import gc
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.errors import CodecError, WorldError
from thinwire.worlds.distributed import Distributed
from thinwire.worlds.group import devices_of, timeout_of

Job = Callable[[Distributed], None]
Jobs: TypeAlias = "queue.SimpleQueue[tuple[Job, Sequence[Promise]] | None]"

_OPEN: "weakref.WeakSet[Lane]" = weakref.WeakSet()
_FORGOTTEN: list[list[Distributed]] = []  # the worlds of lanes that were collected and never closed
_LAST_JOBS = 30.0  # seconds for which a program that is over waits for its last jobs
_MANY = 16  # open lanes from which it is worth looking for forgotten ones


class Streams:
    """One stream of each accelerator, made once: what a lane keeps from step to step is made and used on it.

    A job begins on it when its buffers are filled. Their memory is of other streams, so that the allocator is told.
    """

    def __init__(self) -> None:
        self._of: dict[torch.device, Any] = {}

    @contextmanager
    def behind(self, promises: Sequence["Promise"]) -> Iterator[None]:
        with ExitStack() as entered:
            here: set[torch.device] = set()
            for promise in promises:
                device = promise.buffer.device
                if promise.ready is None:
                    continue
                module = torch.get_device_module(device)
                if device not in self._of:
                    self._of[device] = module.Stream(device=device)
                if device not in here:
                    here.add(device)
                    entered.enter_context(module.stream(self._of[device]))
                self._of[device].wait_event(promise.ready)
                promise.buffer.record_stream(self._of[device])
            yield


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
        self._worlds, self._group_timeout = [self.world], timeout
        self.broken: BaseException | None = None
        self.streams = Streams()
        self._jobs: Jobs = queue.SimpleQueue()
        # A daemon, so that an exception in the main thread can always end the process; `close` joins it in order.
        args = (self._jobs, weakref.ref(self))
        self._thread = threading.Thread(target=_work, args=args, daemon=True, name="thinwire")
        self._thread.start()
        _OPEN.add(self)
        self._forget = weakref.finalize(self, _forget, self._jobs, self._worlds)

    def part(self, sets: Sequence[Sequence[int]]) -> Distributed:
        """A world of the ranks that are in one of these sets with this rank; all ranks call it."""
        members, own = dist.get_process_group_ranks(self.world.group), None
        for ranks in sets:
            if self._partial and self.world.rank not in ranks:
                continue
            group = [members[rank] for rank in ranks]
            made = dist.new_group(group, timeout=self._group_timeout, use_local_synchronization=self._partial)
            own = made if self.world.rank in ranks else own
        world = Distributed(own)
        world.share_presence(self.world)
        self._worlds.append(world)
        return world

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
        _end(self._worlds, not self._partial)


def _end(worlds: Sequence[Distributed], destroy: bool) -> None:
    """Close the connections of a lane's worlds, and destroy their groups."""
    for world in worlds:
        world.close_connections()
        if destroy:
            with suppress(Exception):  # the default group may be gone already, and this one with it
                dist.destroy_process_group(world.group)


def _forget(jobs: Jobs, worlds: list[Distributed]) -> None:
    """End the thread of a lane that was collected; `end_forgotten` destroys its group.

    This may run on any thread at any moment, so that it only adds to queues.
    """
    jobs.put(None)
    _FORGOTTEN.append(worlds)


def end_forgotten(world: Distributed) -> None:
    """Destroy the groups of lanes that were collected on all ranks; every rank of `world` calls it.

    Ranks collect garbage at different times, and torch wants groups to be destroyed in one order. Groups of a part of
    the ranks only lose their connections (see `Lane.leave`).
    """
    if len(_OPEN) >= _MANY:
        gc.collect()  # models and their hooks refer to each other
    members, known = dist.get_process_group_ranks(world.group), dist.distributed_c10d._world.pg_map
    _FORGOTTEN[:] = [each for each in _FORGOTTEN if each[0].group in known]
    mine = {
        str(dist.distributed_c10d._world.pg_names[each[0].group]): each
        for each in _FORGOTTEN
        if each[0].group is not None and dist.get_process_group_ranks(each[0].group) == members
    }
    everywhere = set(mine).intersection(*world.gathered(list(mine), "attach"))
    for name in sorted(everywhere):
        _FORGOTTEN.remove(mine[name])
        _end(mine[name], len(members) == dist.get_world_size())


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
            with owner.streams.behind(promises):
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


def lane_count(wanted: int | None, group: dist.ProcessGroup, device: torch.device) -> int:
    """How many lanes a model on this device has. Two communicators of NCCL that two threads use at the same time may
    wait for each other for ever, because ranks may run their kernels in different orders."""
    if wanted is None:
        return 2 if device.type == "cpu" else 1
    if wanted > 1 and devices_of("nccl", group):
        raise CodecError(
            f"lanes must be 1 with NCCL, which may hang when threads use several communicators at once; got {wanted};"
            " leave lanes away."
        )
    return wanted


def group_count(group: dist.ProcessGroup | None) -> int:
    """How many groups this process has, if that decides the name of the next one (a part of the ranks); else 0."""
    partial = dist.get_world_size(group) < dist.get_world_size()
    return len(dist.distributed_c10d._world.pg_names) if partial else 0


@atexit.register
def _close_all() -> None:
    """Perform the jobs that are left: Python would end the threads in the middle of C++ code, which aborts.

    After an error, peers may wait elsewhere, and the jobs may never end.
    """
    failed = getattr(sys, "last_value", None) is not None  # Python sets it when it prints an uncaught exception
    for lane in list(_OPEN):
        lane.close(wait=1.0 if failed else _LAST_JOBS)
