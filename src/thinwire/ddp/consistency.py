"""Ranks compare what must be equal, so that a difference is an error and not a hang."""

import threading
import uuid
import zlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from thinwire.errors import WorldError
from thinwire.worlds.peers import Peers
from thinwire.worlds.rendezvous import rendezvous


def check_agreement(world: Peers, facts: Mapping[str, Any], what: str, timeout: timedelta | None = None) -> None:
    """Compare facts over the ranks, and name the ranks and the first difference if there is one.

    `what` is the call that all ranks must make within `timeout` (None: that of the group).
    """
    rendezvous(world, what, timeout)
    found = difference(world.gathered(dict(facts), what))
    if found is not None:
        raise WorldError(f"{found}; start all ranks with the same code, model and arguments.")


def difference(everyone: Sequence[Mapping[str, Any]], ranks: Sequence[int] | None = None) -> str | None:
    """The first fact that differs between the ranks, with the ranks; None if there is none.

    `ranks`: whose facts these are; None: of ranks 0, 1, 2, ...
    """
    numbers = range(len(everyone)) if ranks is None else ranks
    for what, first in everyone[0].items():
        others = [rank for rank, facts in zip(numbers, everyone, strict=True) if facts.get(what) != first]
        if others:
            theirs = everyone[list(numbers).index(others[0])].get(what)
            many = len(others) > 1
            return (
                f"the ranks disagree on {what}: rank {numbers[0]} has {_short(first, theirs)},"
                f" rank{'s' if many else ''} {', '.join(map(str, others))} {'have' if many else 'has'}"
                f" {_short(theirs, first)}"
            )
    return None


def new_run(world: Peers) -> str:
    """A name for this run that no other run has, equal on all ranks."""
    name: str = world.gathered(uuid.uuid4().hex, "attach")[0]
    return name


def _short(value: Any, other: Any) -> str:
    """A value in a message; of two lists only what differs."""
    if isinstance(value, list) and isinstance(other, list):
        differing = [v for v in value if v not in other]
        return f"{differing[0]}" if differing else f"{len(value)} entries"
    return f"{value!r}"


class Fingerprint:
    """A checksum of the averaged gradients of a step, in any order."""

    def __init__(self) -> None:
        self._value = 0
        self._lock = threading.Lock()  # all lanes add to it

    def add(self, buffer: Tensor) -> None:
        data = buffer.detach().cpu().contiguous().view(torch.uint8).numpy()
        with self._lock:
            self._value ^= zlib.crc32(data.data)

    def compare(self, world: Peers, step: int, what: str = "averaged gradients") -> None:
        """Raise an error that names the ranks whose results differ, and reset."""
        mine, self._value = self._value, 0
        everyone = world.gathered(mine, f"the comparison of {what}")
        wrong = [str(rank) for rank in range(world.ranks) if everyone[rank] != everyone[0]]
        if wrong:
            raise WorldError(
                f"rank {world.rank}: at step {step} the {what} of rank {', '.join(wrong)}"
                " differ from those of rank 0; look for a faulty machine, or different versions of libraries."
            )
