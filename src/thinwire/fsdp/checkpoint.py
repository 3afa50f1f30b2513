"""Checkpoints of a sharded model: the state of each shard's replicas is a checkpoint of its own.

{"shards": S, "shard0": {as `ddp.checkpoint_save` writes it, with the ranks of these replicas}, ...}
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from thinwire.core.checks import expect_count, expect_mapping
from thinwire.ddp.checkpoint_api import Checkpoints
from thinwire.ddp.checkpoint_folder import read_distributed
from thinwire.errors import StateError
from thinwire.fsdp.groups import Mesh
from thinwire.worlds.peers import Peers


class Shards:
    """All ranks that train a model, as the checkpoint of one shard sees them: it counts the replicas of its own."""

    def __init__(self, everyone: Peers, replica: int, replicas: int) -> None:
        self._everyone = everyone
        self.group, self.timeout = everyone.group, everyone.timeout
        self.rank, self.ranks = replica, replicas

    def gathered(self, mine: Any, what: str = "an exchange of objects") -> list[Any]:
        """The objects of all ranks of all shards."""
        return self._everyone.gathered(mine, what)


def merged(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One checkpoint of those of all ranks."""
    whole: dict[str, Any] = {"shards": states[0]["shards"]}
    for state in states:
        for shard, saved in state.items():
            if shard != "shards":
                whole[shard] = {**whole.get(shard, {}), **saved}
    return whole


def of_shard(saved: Any, shard: int, shards: int) -> Mapping[str, Any]:
    """The part of a checkpoint that belongs to one shard of a model that is split into so many."""
    try:
        saved = expect_mapping("it", saved)
    except StateError as reason:
        raise StateError(f"this is not a thinwire checkpoint: {reason}") from reason
    if "shards" not in saved:
        what = "of a model without shards" if "thinwire" in saved else "not one of thinwire: it has no 'shards'"
        raise StateError(f"this checkpoint is {what}; load what handle.state_dict() of an FSDP model has written.")
    found = expect_count("'shards' in this checkpoint", saved["shards"], 1)
    if found != shards:
        raise StateError(
            f"this checkpoint is of {found} shards, and this model has {shards}; load it into a mesh with as many"
            " shards (the number of replicas may change)."
        )
    if f"shard{shard}" not in saved:
        raise StateError(
            f"this checkpoint lacks shard {shard} of {shards}; save state_dict() on every rank, or full_state_dict()"
            " (called by all ranks) on one."
        )
    return expect_mapping(f"'shard{shard}' in this checkpoint", saved[f"shard{shard}"])


class ShardedCheckpoints(Checkpoints):
    """The part of a handle that saves and loads the state of one shard's replicas."""

    _mesh: Mesh

    def state_dict(self) -> dict[str, Any]:
        """This rank's state, under the number of its shard. Save it on every rank, in a file of its own."""
        shard, shards = self._mesh.shard
        return {"shards": shards, f"shard{shard}": self._saved(self._as_saved())}

    def full_state_dict(self, timeout: timedelta | None = None) -> dict[str, Any]:
        return merged(self._gathered_states(timeout))

    def load_distributed(self, folder: str | Path, key: str = "thinwire") -> None:
        shard = f"shard{self._mesh.shard[0]}"
        self._load(lambda: read_distributed(folder, key, self._as_saved(), shard), whole=False)

    def _load(self, read: Callable[[], Any], whole: bool = True) -> None:
        def mine() -> Mapping[str, Any]:
            return of_shard(read(), *self._mesh.shard) if whole else read()

        self._load_engine(self._as_saved(), mine)

    def _as_saved(self) -> Shards:
        return Shards(self._world, *self._mesh.replica)
