"""A meeting of all ranks with a time limit, before a collective that only some of them may call."""

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from thinwire.errors import WorldError
from thinwire.worlds.distributed import Distributed

_ALL_HERE = "all ranks are here"


def meet(world: Distributed, place: str, timeout: timedelta) -> None:
    """Return when all ranks have come to this place; after the timeout, raise a WorldError on those that have.

    A collective that only some ranks call waits for as long as its group does, and does not say for whom. So the
    ranks meet in the store of the group first. Whoever writes under `place` first decides for all, either that all
    ranks are here or that one has given up; a rank that comes later reads that, and does not wait in vain.
    """
    try:
        outcome = _outcome(world, place, timeout)
    except RuntimeError as reason:  # of the network
        raise WorldError(
            f"rank {world.rank}: the store of the process group does not answer; a peer may have died or left"
            f" ({str(reason).splitlines()[0]})"
        ) from reason
    if outcome != _ALL_HERE:
        raise WorldError(f"rank {world.rank}: {outcome}")


def _outcome(world: Distributed, place: str, timeout: timedelta) -> str:
    group: Any = world.group or dist.group.WORLD
    store = dist.distributed_c10d._get_process_group_store(group)
    store.set(f"{place}/{world.rank}", "here")
    if store.add(f"{place}/count", 1) == world.ranks:
        store.compare_set(place, "", _ALL_HERE)
    try:
        store.wait([place], timeout)
    except RuntimeError:  # the time is up; if it is the network, the next call says so
        absent = [str(rank) for rank in range(world.ranks) if not store.check([f"{place}/{rank}"])]
        store.compare_set(
            place,
            "",
            f"the state of all ranks is saved when every rank asks for it after the same step; rank {world.rank} waited"
            f" {timeout.total_seconds():g} s for rank {', '.join(absent)} to do so. Call state_dict() on all ranks, or"
            " save handle.state_dict() of each rank in a file of its own.",
        )
    outcome: bytes = store.get(place)
    return outcome.decode()
