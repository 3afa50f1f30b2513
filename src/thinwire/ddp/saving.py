"""Checkpoints of an engine: tensors, numbers and text only, each rank's memory under its own key.

    {"thinwire": format, "plan": text, "step": n, "world_size": P, "loss_scale": s, "dial": d, "rank0": {name: slot}}

A rank writes its own key; a file that holds the keys of all ranks can be read by any number of ranks, because what is
held adds up: the sum of all residuals is kept.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from thinwire.core.codec import Codec
from thinwire.core.slot import Slot
from thinwire.core.stage import InputStage
from thinwire.ddp.engine import Engine
from thinwire.errors import StateError
from thinwire.worlds.distributed import Distributed

FORMAT = 3
_HEAD = ("thinwire", "plan", "step", "world_size", "loss_scale", "dial")


def save_engine(engine: Engine, world: Distributed) -> dict[str, Any]:
    """This rank's part of a checkpoint. Tensors are not copied: write it before the next step."""
    slots = {name: _saved(_opened(engine, name)) for name in engine.decisions if _remembers(engine, name)}
    return {
        "thinwire": FORMAT,
        "plan": str(engine.plan),
        "step": engine.step,
        "world_size": world.ranks,
        "loss_scale": engine.loss_scale,
        "dial": engine.dial,
        f"rank{world.rank}": slots,
    }


def load_engine(engine: Engine, world: Distributed, saved: Mapping[str, Any]) -> None:
    """Take over a checkpoint; everything is checked before anything is changed."""
    for key in _HEAD:
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
    for name in engine.decisions:
        if _remembers(engine, name) and name not in slots:
            raise StateError(
                f"this checkpoint is of another model: it lacks the parameter {name!r}, which this one has."
            )
    # a slot that has not worked yet was written only to show its shape
    engine.slots = {name: slot for name, slot in slots.items() if slot.steps or not slot.chain}
    engine.step, engine.loss_scale, engine.dial = int(saved["step"]), float(saved["loss_scale"]), float(saved["dial"])


def _remembers(engine: Engine, name: str) -> bool:
    return bool(engine.decisions[name].codec.stages) or name in engine.slots


def _opened(engine: Engine, name: str) -> Slot:
    """The slot of a parameter; before its first step one of the same shape, for checkpoints that load in place."""
    slot, decision = engine.slots.get(name), engine.decisions[name]
    if slot is None:
        slot = Slot()
        slot.open(decision.codec, decision.shape)
    if slot.held is None and decision.codec.feedback != "off" and not slot.steps:
        dtype = torch.bfloat16 if decision.codec.feedback == "bf16" else torch.float32
        return Slot(slot.chain, slot.shape, slot.states, torch.zeros(decision.numel, dtype=dtype))
    return slot


def _slots_for(world: Distributed, saved: Mapping[str, Any]) -> dict[str, Slot]:
    """The slots of this rank: its own, or an equal share of all if the world has changed its size."""
    before = int(saved["world_size"])
    present = [rank for rank in range(before) if f"rank{rank}" in saved]
    if before == world.ranks and world.rank in present:
        return {name: _restored(name, slot) for name, slot in saved[f"rank{world.rank}"].items()}
    if len(present) != before:
        raise StateError(
            f"this checkpoint has the memory of ranks {present} of {before}; rank {world.rank} of {world.ranks} needs"
            f" {'its own' if before == world.ranks else 'that of all'}; save state_dict() on every rank, or"
            " full_state_dict() (called by all ranks) on one."
        )
    everyone = [saved[f"rank{rank}"] for rank in range(before)]
    names = list(dict.fromkeys(name for slots in everyone for name in slots))
    return {name: _shared_out([_restored(name, s[name]) for s in everyone if name in s], world.ranks) for name in names}


def _shared_out(slots: list[Slot], ranks: int) -> Slot:
    """One slot of `ranks` equal ones that together hold what these held.

    Shared state comes from the rank that has most of it: some stages let one rank keep statistics for all.
    """
    first = slots[0]
    for i in range(len(first.states)):
        first.states[i] = max((slot.states[i] for slot in slots), key=len)
    residuals = [slot.residual for slot in slots if slot.residual is not None]
    if residuals:
        first.residual = (sum(r.double() for r in residuals) / ranks).to(residuals[0].dtype)  # type: ignore[union-attr]
    codec = Codec.parse(first.chain or "none")
    for i, stage in enumerate(codec.stages, codec.offset):
        for key in stage.rank_local if isinstance(stage, InputStage) else ():
            parts = [slot.states[i][key] for slot in slots if key in slot.states[i]]
            if parts:
                first.states[i][key] = torch.stack(parts).sum(0) / ranks
    return first


def _check_slot(engine: Engine, name: str, slot: Slot) -> None:
    decision = engine.decisions.get(name)
    if decision is None:
        raise StateError(f"this checkpoint is of another model: it has the parameter {name!r}, which this one has not.")
    if slot.shape and slot.shape != decision.shape:
        raise StateError(
            f"this checkpoint is of another model: {name!r} has the shape {slot.shape} there and {decision.shape} here."
        )
    if slot.chain and slot.chain != str(decision.codec):
        raise StateError(f"this checkpoint sent {name!r} through {slot.chain}, and this run through {decision.codec}.")
    if slot.held is not None and slot.held.numel() != decision.numel:
        raise StateError(f"the residual of {name!r} has {slot.held.numel()} numbers instead of {decision.numel}.")


def _saved(slot: Slot) -> dict[str, Any]:
    """None is left out, and lists become dictionaries: torch.distributed.checkpoint flattens only those.

    `keys` says what there is to restore, because loading in place leaves out what the target does not have.
    """
    plain = slot.state_dict()
    states = {str(i): state for i, state in enumerate(plain["states"]) if state}
    keys = [f"states.{i}.{key}" for i, state in states.items() for key in state]
    keys += ["residual"] if plain["residual"] is not None else []
    plain |= {"stages": len(plain["states"]), "states": states, "keys": ",".join(sorted(keys))}
    return {key: value for key, value in plain.items() if value is not None and value != {}}


def _restored(name: str, saved: Any) -> Slot:
    if not isinstance(saved, Mapping):
        raise StateError(f"the memory of {name!r} in this checkpoint is not that of a slot.")
    states = saved.get("states", {})
    present = {f"states.{i}.{key}" for i, state in states.items() for key in state}
    present |= {"residual"} if saved.get("residual") is not None else set()
    lacking = sorted(set(filter(None, str(saved.get("keys", "")).split(","))) - present)
    if lacking:
        raise StateError(
            f"the memory of {name!r} came without {', '.join(lacking)}: a new handle cannot tell a checkpoint that"
            " loads in place what to load; use handle.load_distributed(folder)."
        )
    ordered = [dict(states.get(str(i), {})) for i in range(int(saved.get("stages", 0)))]
    return Slot.from_state_dict({**saved, "states": ordered, "residual": saved.get("residual")})


def read_distributed(folder: str | Path, key: str, world: Distributed) -> dict[str, Any]:
    """What was saved under `key` with torch.distributed.checkpoint: of this rank, or of all if the world has changed.

    Loading in place needs a target of the right shape, which a new handle does not have: the target is built from
    what the checkpoint says it holds.
    """
    # at use: importing thinwire stays cheap
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    metadata = FileSystemReader(folder).read_metadata()
    paths = {flat: path for flat, path in (metadata.planner_data or {}).items() if path[0] == key}
    if (key, "world_size") not in paths.values():
        raise StateError(f"the checkpoint in {folder} has no thinwire state under {key!r}.")
    head = {flat: _target(metadata.state_dict_metadata[flat]) for flat, path in paths.items() if len(path) == 2}
    load(head, checkpoint_id=folder, process_group=world.group)
    before = next(head[flat] for flat, path in paths.items() if path == (key, "world_size"))
    wanted = {flat: path for flat, path in paths.items() if before != world.ranks or path[1] == f"rank{world.rank}"}
    body = {flat: _target(metadata.state_dict_metadata[flat]) for flat, path in wanted.items() if len(path) > 2}
    if body:
        load(body, checkpoint_id=folder, process_group=world.group)
    nested = _nested({paths[flat][1:]: value for flat, value in {**head, **body}.items()})
    if all(len(path) == 2 for path in paths.values()):  # nobody had anything to remember
        nested |= {f"rank{rank}": {} for rank in range(before)}
    return nested


def _target(described: Any) -> Any:
    """Room for one entry of a checkpoint."""
    if hasattr(described, "size"):
        return torch.empty(described.size, dtype=described.properties.dtype)
    return None


def _nested(flat: Mapping[tuple[Any, ...], Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for path, value in flat.items():
        at = nested
        for part in path[:-1]:
            at = at.setdefault(str(part), {})
        at[str(path[-1])] = value
    return nested
