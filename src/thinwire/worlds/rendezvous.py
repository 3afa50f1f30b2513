"""All ranks come to the same call, or those that came learn which ones did not.

A collective that some ranks never enter ends with its group's timeout and says nothing about them. So the ranks meet
at the store first: each notes that it has come, and the last one notes that all are there. A rank that has waited long
enough notes instead that it has given up, and who was missing. Only the first such note counts, so that all ranks
decide alike; a rank that comes later reads it.
"""

import json
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store

from thinwire.errors import WorldError
from thinwire.worlds.distributed import Distributed

_MEETINGS: dict[str, int] = {}  # how often the ranks of a group have met; a number is never used again


def rendezvous(world: Distributed, what: str, timeout: timedelta | None) -> None:
    """Wait until all ranks have come to the call `what`, for at most `timeout` (None: that of the group)."""
    store: Store | None = _get_default_store()
    if world.ranks == 1 or store is None:  # the MPI backend has no store
        return
    members = "-".join(map(str, dist.get_process_group_ranks(world.group)))
    number = _MEETINGS[members] = _MEETINGS.get(members, 0) + 1
    meeting = PrefixStore(f"thinwire/{members}/{number}", store)
    seconds = world.timeout if timeout is None else timeout.total_seconds()
    try:
        decision = _decided(meeting, world, seconds)
    except RuntimeError as reason:
        raise WorldError(
            f"rank {world.rank} of {world.ranks}: the process group's store does not answer in {what}; the process that"
            f" hosts it, often rank 0, may be gone ({str(reason).splitlines()[0]})"
        ) from reason
    missing, waited = decision["missing"], decision["seconds"]
    if world.rank in missing:
        raise WorldError(
            f"rank {world.rank} of {world.ranks}: the other ranks waited {waited:g} s for this one to come to {what},"
            " and gave up; call it on all ranks, or give it a longer timeout=."
        )
    if missing:
        raise WorldError(
            f"rank {world.rank} of {world.ranks}: rank {', '.join(map(str, missing))} did not come to {what} within"
            f" {waited:g} s; call it on all ranks, or give it a longer timeout=."
        )


def _decided(meeting: Store, world: Distributed, seconds: float) -> dict[str, Any]:
    """Which ranks were missing when the first rank gave up, after how many seconds; none if all came."""
    meeting.set(f"rank {world.rank}", "has come")
    if meeting.add("count", 1) == world.ranks:
        return _decide(meeting, [], 0.0)
    try:
        meeting.wait(["decision"], timedelta(seconds=seconds))
    except RuntimeError:  # too late, or the store is gone: then what follows fails too
        missing = [rank for rank in range(world.ranks) if not meeting.check([f"rank {rank}"])]
        return _decide(meeting, missing, seconds)
    return _decide(meeting, [], 0.0)  # there is one


def _decide(meeting: Store, missing: list[int], seconds: float) -> dict[str, Any]:
    """Note a decision, unless there is one; the one that counts."""
    noted = meeting.compare_set("decision", "", json.dumps({"missing": missing, "seconds": seconds}))
    decision: dict[str, Any] = json.loads(noted)
    return decision
