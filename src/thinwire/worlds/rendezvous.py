"""All ranks reach the same call, or those that reached it learn which ranks did not.

If some ranks never enter a collective, it ends with its group's timeout, and the error does not name them. So the ranks
use the store first. Each rank writes that it has arrived, and the last one writes that all are there. A rank whose
timeout has passed writes instead that it has given up, and which ranks were missing. Only the first such decision
counts, so that all ranks decide alike; a rank that arrives later reads it.
"""

import json
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store

from thinwire.errors import WorldError
from thinwire.worlds.peers import Peers

_COUNTS: dict[str, int] = {}  # rendezvous of a group's ranks so far; a number is never used again


def rendezvous(world: Peers, what: str, timeout: timedelta | None) -> None:
    """Wait until all ranks have reached the call `what`, for at most `timeout` (None: that of the group)."""
    store: Store | None = None if world.ranks == 1 else _get_default_store()
    if store is None:  # the MPI backend has no store
        return
    members = "-".join(map(str, dist.get_process_group_ranks(world.group)))
    number = _COUNTS[members] = _COUNTS.get(members, 0) + 1
    keys = PrefixStore(f"thinwire/{members}/{number}", store)
    seconds = world.timeout if timeout is None else timeout.total_seconds()
    try:
        decision = _decided(keys, world, seconds)
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


def _decided(keys: Store, world: Peers, seconds: float) -> dict[str, Any]:
    """The ranks that were missing when the first rank gave up, and after how many seconds; none if all arrived."""
    keys.set(f"rank {world.rank}", "has arrived")
    if keys.add("count", 1) == world.ranks:
        return _decide(keys, [], 0.0)
    try:
        keys.wait(["decision"], timedelta(seconds=seconds))
    except RuntimeError:  # too late, or the store is lost: then the next line fails too
        missing = [rank for rank in range(world.ranks) if not keys.check([f"rank {rank}"])]
        return _decide(keys, missing, seconds)
    return _decide(keys, [], 0.0)  # there is one already


def _decide(keys: Store, missing: list[int], seconds: float) -> dict[str, Any]:
    """Write a decision, unless there is one already; returns the one that counts."""
    written = keys.compare_set("decision", "", json.dumps({"missing": missing, "seconds": seconds}))
    decision: dict[str, Any] = json.loads(written)
    return decision
