"""Checkpoints of a distributed run: every rank writes its own file, because compressors hold different state on each.

A folder holds `step300.rank0.pt`, `step300.rank1.pt`, ... A file appears complete or not at all, and older steps are
removed only when every rank has written the new one; so whatever moment a run dies at, some step is there in full.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from thinwire.errors import StateError

_NEEDED = {"step", "ranks"}
_NAME = re.compile(r"step(\d+)\.rank(\d+)\.pt")


def save_checkpoint(folder: Path, step: int, state: Mapping[str, Any], *, rank: int = 0, ranks: int = 1) -> None:
    """Writes this rank's state; returns when all ranks have written theirs."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"step{step}.rank{rank}.pt"
    unfinished = target.with_suffix(".unfinished")
    with unfinished.open("wb") as file:
        torch.save({"step": step, "ranks": ranks, **state}, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(target)
    if ranks > 1:
        dist.barrier()
    for old in _steps_of(folder, rank):
        if old != step:
            (folder / f"step{old}.rank{rank}.pt").unlink()


def load_checkpoint(folder: Path, *, rank: int = 0, ranks: int = 1) -> dict[str, Any]:
    """The state of the newest step that all ranks have."""
    mine = _steps_of(folder, rank)
    held: list[set[int]] = [mine]
    if ranks > 1:
        held = [set()] * ranks
        dist.all_gather_object(held, mine)
    common = set.intersection(*held)
    if not common:
        raise StateError(
            f"there is no checkpoint to resume in {folder.absolute()}: looked for step<N>.rank0.pt to"
            f" step<N>.rank{ranks - 1}.pt of one step; give the folder of an earlier run or start without resuming."
        )
    state, failure = None, ""
    try:
        state = _read(folder / f"step{max(common)}.rank{rank}.pt", ranks)
    except StateError as reason:
        failure = str(reason)
    failures = [failure]
    if ranks > 1:  # a rank whose file is bad must not leave the others waiting
        failures = [""] * ranks
        dist.all_gather_object(failures, failure)
    if any(failures):
        raise StateError(failure or next(filter(None, failures)))
    assert state is not None
    return state


def _read(path: Path, ranks: int) -> dict[str, Any]:
    try:
        state: Any = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as reason:  # torch.load raises whatever its unpickler meets
        raise StateError(f"{path} is not a readable checkpoint ({reason}); remove it to use an earlier one.") from None
    if not isinstance(state, dict) or not state.keys() >= _NEEDED:
        raise StateError(f"{path} is not a checkpoint of a recipe; remove it to use an earlier one.")
    if state["ranks"] != ranks:
        raise StateError(f"{path} comes from {state['ranks']} ranks and cannot be resumed on {ranks}; start as many.")
    return state


def _steps_of(folder: Path, rank: int) -> set[int]:
    names = [_NAME.fullmatch(path.name) for path in folder.iterdir()] if folder.is_dir() else []
    return {int(name[1]) for name in names if name and int(name[2]) == rank}
