"""Checkpoints of an engine: tensors, numbers and text only, each rank's memory under its own key.

    {"thinwire": format, "plan": text, "step": n, "world_size": P, "loss_scale": s, "rank0": {parameter: slot}, ...}

A rank writes its own key; a file that holds the keys of all ranks can be read by any number of ranks, because what is
held adds up: the sum of all residuals is kept.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from thinwire.core.slot import Slot
from thinwire.ddp.engine import Engine
from thinwire.errors import StateError
from thinwire.worlds.distributed import Distributed

FORMAT = 1


def save_engine(engine: Engine, world: Distributed) -> dict[str, Any]:
    """This rank's part of a checkpoint."""
    return {
        "thinwire": FORMAT,
        "plan": str(engine.plan),
        "step": engine.step,
        "world_size": world.ranks,
        "loss_scale": engine.loss_scale,
        f"rank{world.rank}": {name: _without_none(slot.state_dict()) for name, slot in engine.slots.items()},
    }


def load_engine(engine: Engine, world: Distributed, saved: Mapping[str, Any]) -> None:
    """Take over a checkpoint; everything is checked before anything is changed."""
    for key in ("thinwire", "plan", "step", "world_size", "loss_scale"):
        if key not in saved:
            raise StateError(f"this is not a thinwire checkpoint: it has no {key!r}.")
    if saved["thinwire"] != FORMAT:
        raise StateError(f"this checkpoint has format {saved['thinwire']}, and this thinwire reads {FORMAT}.")
    if saved["plan"] != str(engine.plan):
        raise StateError(
            f"this checkpoint was written with the plan {saved['plan']}, and this run uses {engine.plan};"
            " attach with the old plan, load, and then call handle.use(new plan)."
        )
    slots = _slots_for(world, saved)
    for name, slot in slots.items():
        _check_slot(engine, name, slot)
    engine.slots, engine.step = slots, int(saved["step"])
    engine.loss_scale = float(saved["loss_scale"])


def _slots_for(world: Distributed, saved: Mapping[str, Any]) -> dict[str, Slot]:
    """The slots of this rank: its own, or an equal share of all if the world has changed its size."""
    before = int(saved["world_size"])
    present = [rank for rank in range(before) if f"rank{rank}" in saved]
    if before == world.ranks and world.rank in present:
        return {name: Slot.from_state_dict(_with_none(slot)) for name, slot in saved[f"rank{world.rank}"].items()}
    if len(present) != before:
        raise StateError(
            f"this checkpoint has the memory of ranks {present} of {before}; rank {world.rank} of {world.ranks} needs"
            " its own; save state_dict() on every rank, or full_state_dict() (called by all ranks) on one."
        )
    all_slots = [saved[f"rank{rank}"] for rank in range(before)]
    return {name: _shared_out([s[name] for s in all_slots if name in s], world.ranks) for name in all_slots[0]}


def _shared_out(saved: list[Mapping[str, Any]], ranks: int) -> Slot:
    """One slot of `ranks` equal ones that together hold what these held; shared state comes from the first."""
    slots = [Slot.from_state_dict(_with_none(s)) for s in saved]
    first = slots[0]
    residuals = [slot.residual for slot in slots if slot.residual is not None]
    if residuals:
        total = torch.stack([r.float() for r in residuals]).sum(0) / ranks
        first.residual = total.to(residuals[0].dtype)
    for i, state in enumerate(first.states):
        for key in state.get("summed", ()):
            state[key] = torch.stack([slot.states[i][key] for slot in slots]).sum(0) / ranks
    return first


def _check_slot(engine: Engine, name: str, slot: Slot) -> None:
    decision = engine.decisions.get(name)
    if decision is None:
        raise StateError(f"this checkpoint is of another model: it has the parameter {name!r}, which this one has not.")
    if slot.shape and slot.shape != decision.shape:
        raise StateError(
            f"this checkpoint is of another model: {name!r} has the shape {slot.shape} there and {decision.shape} here."
        )
    if slot.residual is not None and slot.residual.numel() != decision.numel:
        raise StateError(f"the residual of {name!r} has {slot.residual.numel()} numbers instead of {decision.numel}.")


def _without_none(slot: dict[str, Any]) -> dict[str, Any]:
    """None is left out, and lists become dictionaries: torch.distributed.checkpoint flattens only those."""
    states = {str(i): state for i, state in enumerate(slot["states"])}
    return {k: v for k, v in {**slot, "states": states}.items() if v is not None}


def _with_none(slot: Mapping[str, Any]) -> dict[str, Any]:
    states = slot.get("states", {})
    ordered = [states[str(i)] for i in range(len(states))] if isinstance(states, Mapping) else states
    residual = slot.get("residual")
    if residual is not None and not isinstance(residual, Tensor):
        raise StateError("the residual in this checkpoint is not a tensor.")
    return {**slot, "states": ordered, "residual": residual}
