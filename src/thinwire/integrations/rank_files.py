"""The state of every rank in a file of its own, beside a framework's checkpoint.

Frameworks write what rank 0 has. Residuals differ from rank to rank, so each rank writes `thinwire-<rank>.pt`.
"""

import os
import re
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from thinwire.core.checks import expect_mapping
from thinwire.errors import StateError

_NAME = re.compile(r"thinwire-(0|[1-9][0-9]*)\.pt")


class Saves(Protocol):
    """What a handle has for checkpoints."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, saved: Any) -> None: ...


def write_state(handle: Saves, folder: str | Path) -> None:
    """Write this rank's state into `folder`; every rank calls it after the same step.

    The file gets its name when it is whole, so that a run that dies here leaves no half of one.
    """
    path = Path(folder) / f"thinwire-{_world()[0]}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    torch.save(handle.state_dict(), part)
    os.replace(part, path)


def read_state(handle: Saves, folder: str | Path) -> None:
    """Go on from what `write_state` wrote into `folder`, by any number of ranks; every rank calls it.

    If one rank cannot read its file, all raise an error and none changes anything.
    """
    saved, failure = None, ""
    try:
        saved = _merged(Path(folder), *_world())
    except Exception as reason:  # whatever torch raises on files that are missing or damaged
        failure = str(reason) if isinstance(reason, StateError) else f"{type(reason).__name__}: {reason}"
    for rank, said in enumerate(_told(failure)):
        if said:
            raise StateError(f"rank {rank} cannot read its thinwire state, so no rank has loaded any: {said}")
    handle.load_state_dict(saved)


def _merged(folder: Path, rank: int, ranks: int) -> dict[str, Any]:
    """This rank's file; if the world has changed its size, those of all ranks that wrote."""
    names = sorted((path for path in folder.glob("thinwire-*.pt") if _NAME.fullmatch(path.name)), key=_rank)
    if not names:
        raise StateError(
            f"{folder} has no file thinwire-<rank>.pt: this checkpoint was written without thinwire; load it before"
            " thinwire is attached, or start from one that was written with it."
        )
    own = folder / f"thinwire-{rank}.pt"
    whole = dict(expect_mapping("it", torch.load(own if own in names else names[0], weights_only=True)))
    if whole.get("world_size") != ranks:
        for path in names:
            part = expect_mapping("it", torch.load(path, weights_only=True))
            whole |= {key: value for key, value in part.items() if key.startswith("rank")}
    return whole


def _rank(path: Path) -> int:
    return int(path.stem.split("-")[1])


def _world() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def _told(failure: str) -> list[str]:
    """What every rank says; one that cannot read must not leave the others waiting."""
    _, ranks = _world()
    if ranks == 1:
        return [failure]
    said: list[Any] = [None] * ranks
    dist.all_gather_object(said, failure)
    return said
