"""Checkpoints of an engine: tensors, numbers and text only, each rank's state under its own key.

    {"thinwire": format, "plan": text, "run": text, "step": n, "world_size": P, "loss_scale": s, "dial": d,
     "rank0": {name: slot}}

A rank writes its own key. Any number of ranks can read a file with the keys of all ranks: each takes an equal share of
the sum of all residuals. With `local_size`, which is then a key too, a rank has the slots of what it carries between
hosts. `run` names the run that wrote it; `ddp.checkpoint_load` reads it.
"""

from typing import Any

import torch

from thinwire.core.slot import Slot
from thinwire.ddp.engine import Engine
from thinwire.worlds.peers import Peers

FORMAT = 3


def save_engine(engine: Engine, world: Peers) -> dict[str, Any]:
    """This rank's part of a checkpoint. Tensors are not copied: write it before the next step."""
    slots = {name: _saved(_opened(engine, name)) for name in engine.decisions if remembers(engine, name)}
    return {
        "thinwire": FORMAT,
        "plan": str(engine.plan),
        "run": engine.run,
        "step": engine.step,
        "world_size": world.ranks,
        "loss_scale": engine.loss_scale,
        "dial": engine.dial,
        **({} if engine.share is None else {"local_size": engine.share.local_size}),
        f"rank{world.rank}": slots,
    }


def remembers(engine: Engine, name: str) -> bool:
    """Whether a checkpoint has state of this parameter."""
    return engine.carries(name) and (bool(engine.decisions[name].codec.stages) or name in engine.slots)


def _opened(engine: Engine, name: str) -> Slot:
    """The slot of a parameter; before its first step one of the same shape, for checkpoints that load in place."""
    slot, decision = engine.slots.get(name), engine.decisions[name]
    if slot is None:
        slot = Slot()
        slot.open(decision.codec, decision.shape)
    if slot.residual_data is None and decision.codec.feedback != "off" and not slot.steps:
        dtype = torch.bfloat16 if decision.codec.feedback == "bf16" else torch.float32
        return Slot(slot.chain, slot.shape, slot.states, torch.zeros(decision.numel, dtype=dtype))
    return slot


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
