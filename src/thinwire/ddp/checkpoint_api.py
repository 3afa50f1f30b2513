"""The methods of a handle that save and load."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from thinwire.ddp.checkpoint_folder import read_distributed
from thinwire.ddp.checkpoint_load import load_engine
from thinwire.ddp.checkpoint_save import save_engine
from thinwire.ddp.engine import Engine
from thinwire.worlds.distributed import Distributed
from thinwire.worlds.rendezvous import rendezvous


class WholeState:
    """`state_dict()` returns the state of all ranks, the same on each, and `load_state_dict()` loads it.

    Every rank must call both, after the same step. If only some ranks do, they raise a WorldError after the timeout,
    which names the ranks that did not.
    """

    def __init__(self, save: Callable[[], dict[str, Any]], load: Callable[[Mapping[str, Any]], None]) -> None:
        self._save, self._load = save, load

    def state_dict(self) -> dict[str, Any]:
        """The state of all ranks; every rank must call it."""
        return self._save()

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on where a run stopped; every rank must call it."""
        self._load(saved)


class Checkpoints:
    """The part of a handle that saves and loads the state of its engine."""

    engine: Engine
    _world: Distributed
    _timeout: timedelta | None  # how long ranks wait for each other to save the state of all; None: as their group

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: tensors, numbers and text. Save it on every rank, in a file of its own.

        It is the wrong one for whatever writes the state of rank 0 only (Accelerate, Lightning, Fabric, a script that
        saves on one rank): the other ranks' state would be lost, and loading would raise an error. Use `stateful`.
        """
        return save_engine(self.engine, self._world)

    def full_state_dict(self, timeout: timedelta | None = None) -> dict[str, Any]:
        """The state of all ranks in one dictionary, the same on each; every rank must call it after the same step.

        If a rank does not within `timeout` (that of `attach` or of the process group by default), the others raise a
        WorldError that names it.
        """
        what = "full_state_dict() or stateful().state_dict()"
        rendezvous(self._world, what, timeout or self._timeout)
        everyone = self._world.gathered(self.state_dict(), what)
        whole = dict(everyone[0])
        for saved in everyone[1:]:
            whole |= {key: value for key, value in saved.items() if key.startswith("rank")}
        return whole

    def stateful(self, timeout: timedelta | None = None) -> WholeState:
        """An object for frameworks that save `state_dict()` of one rank and load that on all of them.

        Its `state_dict()` is `full_state_dict(timeout)`: every rank must call it, which Accelerate's
        `register_for_checkpointing`, Lightning, Fabric and torch.distributed.checkpoint do.
        """
        return WholeState(lambda: self.full_state_dict(timeout), self.load_state_dict)

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from `saved`, which `state_dict` gave on this rank or `full_state_dict` on any.

        Every rank must call it. Nothing changes on any rank if one rank's checkpoint does not fit, or if the ranks'
        checkpoints are not of the same run and step.
        """
        self._load(lambda: saved)

    def load_distributed(self, folder: str | Path, key: str = "thinwire") -> None:
        """Go on from a torch.distributed.checkpoint in `folder`, in which `state_dict()` was saved under `key`, by any
        number of ranks; every rank must call it. Code that a foreign folder brings is not run."""
        self._load(lambda: read_distributed(folder, key, self._world))

    def _load(self, read: Callable[[], Any]) -> None:
        load_engine(self.engine, self._world, read)
        self._take_slot()

    def _take_slot(self) -> None:
        """Register the hook if what was loaded has to be delivered."""
