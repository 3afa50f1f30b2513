"""The methods of a handle that save and load."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from thinwire.core.checks import expect_mapping, expect_text
from thinwire.core.plan import Plan
from thinwire.ddp.checkpoint_folder import read_distributed
from thinwire.ddp.checkpoint_load import load_engine
from thinwire.ddp.checkpoint_save import save_engine
from thinwire.ddp.engine import Engine
from thinwire.errors import StateError
from thinwire.worlds.peers import Peers
from thinwire.worlds.rendezvous import rendezvous

_CHOSEN = "auto"  # the key of a chooser's state


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


class Chooser(Protocol):
    """What chooses the plan of a handle while the model trains (`attach(model, "auto")`)."""

    decisions: list[Any]

    def save(self) -> str:
        """Its state as text."""

    def load(self, text: str) -> None:
        """Go on with what `save` gave."""

    def check(self, text: str) -> None:
        """Raise a StateError if `load` could not read it."""


class Checkpoints:
    """The part of a handle that saves and loads the state of its engine."""

    chooser: Chooser | None = None
    engine: Engine
    _layout: list[tuple[str, Tensor]]  # the trained parameters
    _world: Peers
    _timeout: timedelta | None  # how long ranks wait for each other to save the state of all; None: as their group

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: tensors, numbers and text. Save it on every rank, in a file of its own.

        It is the wrong one for whatever writes the state of rank 0 only (Accelerate, Lightning, Fabric, a script that
        saves on one rank): the other ranks' state would be lost, and loading would raise an error. Use `stateful`.
        """
        return self._saved(self._world)

    def full_state_dict(self, timeout: timedelta | None = None) -> dict[str, Any]:
        """The state of all ranks in one dictionary, the same on each; every rank must call it after the same step.

        If a rank does not within `timeout` (that of `attach` or of the process group by default), the others raise a
        WorldError that names it.
        """
        everyone = self._gathered_states(timeout)
        whole = dict(everyone[0])
        for saved in everyone[1:]:
            whole |= {key: value for key, value in saved.items() if key.startswith("rank")}
        return whole

    def _gathered_states(self, timeout: timedelta | None) -> list[dict[str, Any]]:
        what = "full_state_dict() or stateful().state_dict()"
        rendezvous(self._world, what, timeout or self._timeout)
        return self._world.gathered(self.state_dict(), what)

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

    def _saved(self, world: Peers) -> dict[str, Any]:
        """This rank's part of a checkpoint of these ranks."""
        saved = save_engine(self.engine, world)
        return saved if self.chooser is None else {**saved, _CHOSEN: self.chooser.save()}

    def _load(self, read: Callable[[], Any]) -> None:
        self._load_engine(self._world, read)
        self._take_slot()

    def _load_engine(self, world: Peers, read: Callable[[], Any]) -> None:
        """Load a checkpoint of these ranks; if a chooser wrote it, with the plan that was chosen then."""
        if self.chooser is None:
            load_engine(self.engine, world, read)
        else:
            self._load_chosen(self.chooser, world, read)

    def _load_chosen(self, chooser: Chooser, world: Peers, read: Callable[[], Any]) -> None:
        before, found = self.engine.plan, dict[str, str]()

        def read_chosen() -> Any:
            saved = expect_mapping("a checkpoint", read())
            found[_CHOSEN] = expect_text(f"{_CHOSEN!r} in this checkpoint", saved.get(_CHOSEN, ""))
            if not found[_CHOSEN]:
                raise StateError(
                    "this checkpoint was written with a plan that was not chosen by auto; attach with that plan, load,"
                    " and go on with it."
                )
            chooser.check(found[_CHOSEN])
            self._set_plan(Plan.parse(expect_text("'plan' in this checkpoint", saved.get("plan"))))
            return saved

        try:
            load_engine(self.engine, world, read_chosen, lambda: {"the plan": str(self.engine.plan)})
        except Exception:
            self._set_plan(before)
            raise
        chooser.load(found[_CHOSEN])

    def _set_plan(self, plan: Plan) -> None:
        """Let the engine use another plan; the ranks agree on it elsewhere."""
        self.engine.use(plan, self._layout)

    def _take_slot(self) -> None:
        """Register the hook if what was loaded has to be delivered."""
