"""Checkpoints are read, checked and compared over the ranks before anything changes: all ranks load, or none does."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thinwire.core.checks import expect_count, expect_keys, expect_mapping, expect_number, expect_shape, expect_text
from thinwire.core.codec import Codec
from thinwire.core.plan import Decision, Plan
from thinwire.core.slot import Slot
from thinwire.core.spec import Spec
from thinwire.core.stage import InputStage
from thinwire.ddp.checkpoint_save import FORMAT, remembers
from thinwire.ddp.consistency import difference
from thinwire.ddp.engine import Engine
from thinwire.errors import StateError
from thinwire.worlds.peers import Peers

_HEAD = ("thinwire", "plan", "step", "world_size", "loss_scale", "dial")
_SLOT = ("chain", "shape", "steps", "dial", "behind")
_RANK = re.compile(r"rank(0|[1-9][0-9]{0,8})")


@dataclass
class Loaded:
    """A checkpoint that fits this engine."""

    run: str
    step: int
    loss_scale: float
    dial: float
    slots: dict[str, Slot]

    def facts(self, engine: Engine) -> dict[str, Any]:
        """What must be equal on all ranks; the plan is that of the engine, about which they have agreed."""
        return {
            "the step of their checkpoints": self.step,
            "the run that wrote their checkpoints": self.run,
            "the loss scale in their checkpoints": self.loss_scale,
            "the dial in their checkpoints": self.dial,
        }

    def states(self, engine: Engine) -> dict[str, Any]:
        """What must be equal on all ranks that carry the same parameters."""
        states = [
            # a residual that no codec delivers has a collective of its own, which all ranks must enter
            (name, *slot.shared(engine.decisions[name].codec), not slot.chain and slot.residual_data is not None)
            for name, slot in self.slots.items()
        ]
        return {"the state of a parameter in their checkpoints": states}


def load_engine(
    engine: Engine, world: Peers, read: Callable[[], Any], also: Callable[[], dict[str, Any]] = dict
) -> None:
    """Load what `read` returns; every rank must call it. After it, `also` returns more that must be equal on all ranks.

    A rank that cannot read or use its checkpoint sends its error to the others, so that they do not wait for it, and no
    rank changes anything.
    """
    loaded, failure = None, None
    try:
        loaded = checked(engine, world, read())
        facts = {**loaded.facts(engine), **also()}
        said: dict[str, Any] = {"facts": facts, "states": loaded.states(engine), "share": engine.share}
    except Exception as reason:
        failure, said = reason, {"failure": str(reason) or type(reason).__name__}
    everyone = world.gathered(said, "loading a checkpoint")
    if failure is not None:
        raise failure
    for rank, other in enumerate(everyone):
        if "failure" in other:
            raise StateError(f"rank {rank} cannot load its checkpoint, so no rank has loaded any: {other['failure']}")
    found = difference([other["facts"] for other in everyone])
    shares = {other["share"].fellows if other["share"] else tuple(range(len(everyone))) for other in everyone}
    for ranks in sorted(shares):
        found = found or difference([everyone[rank]["states"] for rank in ranks], ranks)
    if found is not None:
        raise StateError(f"{found}; load checkpoints of one run and one step on all ranks. Nothing has changed.")
    assert loaded is not None
    # a slot that has not worked yet was written only to show its shape
    engine.slots = {name: slot for name, slot in loaded.slots.items() if slot.steps or not slot.chain}
    engine.step, engine.loss_scale, engine.dial = loaded.step, loaded.loss_scale, loaded.dial


def checked(engine: Engine, world: Peers, saved: Any) -> Loaded:
    """What a checkpoint says, if it belongs to this engine; a StateError otherwise."""
    try:
        saved = expect_mapping("it", saved)
    except StateError as reason:
        raise StateError(f"this is not a thinwire checkpoint: {reason}") from reason
    for key in _HEAD:
        if key not in saved:
            raise StateError(f"this is not a thinwire checkpoint: it has no {key!r}.")
    if expect_count("'thinwire' in this checkpoint", saved["thinwire"]) != FORMAT:
        raise StateError(f"this checkpoint has format {saved['thinwire']}, and this thinwire reads {FORMAT}.")
    if expect_text("'plan' in this checkpoint", saved["plan"]) != str(engine.plan):
        raise StateError(
            f"this checkpoint was written with the plan {saved['plan']}, and this run uses {engine.plan};"
            " attach with the old plan, load, and then call handle.use(new plan)."
        )
    run = expect_text("'run' in this checkpoint", saved.get("run", ""))
    step = expect_count("'step' in this checkpoint", saved["step"])
    scale = expect_number("'loss_scale' in this checkpoint", saved["loss_scale"], math.ulp(0.0))
    dial = expect_number("'dial' in this checkpoint", saved["dial"], 0.0, 1.0)
    slots = {name: slot for name, slot in _slots_for(engine, world, saved).items() if engine.carries(name)}
    for name in engine.decisions:
        if remembers(engine, name) and name not in slots:
            raise StateError(
                f"this checkpoint is of another model: it lacks the parameter {name!r}, which this one has."
            )
    return Loaded(run, step, scale, dial, slots)


def _slots_for(engine: Engine, world: Peers, saved: Mapping[str, Any]) -> dict[str, Slot]:
    """The slots of this rank: its own, or an equal share of all if the world has changed its size."""
    before = expect_count("'world_size' in this checkpoint", saved["world_size"], 1)
    found = [int(match[1]) for match in map(_RANK.fullmatch, saved) if match]
    present = sorted(rank for rank in found if rank < before)
    own = before == world.ranks
    if own and world.rank in present and (own := _same_share(engine, saved, world.rank)):
        return _slots_of(engine, saved, world.rank)
    if len(present) != before:
        raise StateError(
            f"this checkpoint has the memory of ranks {present} of {before}; rank {world.rank} of {world.ranks} needs"
            f" {'its own' if own else 'that of all'}; save state_dict() on every rank, or"
            " full_state_dict() (called by all ranks) on one."
        )
    everyone = [_slots_of(engine, saved, rank) for rank in present]
    names = list(dict.fromkeys(name for slots in everyone for name in slots))
    ranks = world.ranks if engine.share is None else len(engine.share.fellows)
    return {
        name: _shared_out(name, engine.decisions[name].codec, [s[name] for s in everyone if name in s], ranks)
        for name in names
    }


def _same_share(engine: Engine, saved: Mapping[str, Any], rank: int) -> bool:
    """Whether this rank carried the same parameters when the checkpoint was written."""
    carried = expect_mapping(f"'rank{rank}' in this checkpoint", saved[f"rank{rank}"])
    size = expect_count("'local_size' in this checkpoint", saved.get("local_size", 1), 1)
    return size == (1 if engine.share is None else engine.share.local_size) and all(map(engine.carries, carried))


def _slots_of(engine: Engine, saved: Mapping[str, Any], rank: int) -> dict[str, Slot]:
    slots = expect_mapping(f"'rank{rank}' in this checkpoint", saved[f"rank{rank}"])
    return {name: _restored(name, engine.decisions.get(name), engine.plan, slot) for name, slot in slots.items()}


def _restored(name: str, decision: Decision | None, plan: Plan, saved: Any) -> Slot:
    """The slot of a parameter, checked against the plan's decision first."""
    if decision is None:
        raise StateError(f"this checkpoint is of another model: it has the parameter {name!r}, which this one has not.")
    if not isinstance(saved, Mapping):
        raise StateError(f"the memory of {name!r} in this checkpoint is not that of a slot.")
    chain = expect_text(f"the chain of {name!r}", saved.get("chain"))
    shape = expect_shape(f"the shape of {name!r}", saved.get("shape"))
    if shape and shape != decision.shape:
        raise StateError(
            f"this checkpoint is of another model: {name!r} has the shape {shape} there and {decision.shape} here."
        )
    same = not chain or chain == str(decision.codec)
    codec = decision.codec if same else _declined(decision, plan, chain)
    if codec is None:
        raise StateError(f"this checkpoint sent {name!r} through {chain}, and this run through {decision.codec}.")
    try:
        slot = Slot.from_state_dict(_unfolded(name, saved, len(codec.parts)), codec)
    except StateError as reason:
        raise StateError(f"the memory of {name!r} in this checkpoint is damaged: {reason}") from reason
    if slot.residual_data is not None and slot.residual_data.numel() != decision.numel:
        raise StateError(
            f"the residual of {name!r} has {slot.residual_data.numel()} numbers instead of {decision.numel}."
        )
    return slot if codec is decision.codec else Slot(residual_data=slot.residual)


def _declined(decision: Decision, plan: Plan, chain: str) -> Codec | None:
    """The codec of a chain that declines this parameter: earlier versions kept a slot of it all the same.

    Its residual is delivered in the next step, as after `use`.
    """
    if decision.codec.stages:
        return None
    codecs = (rule.codec for rule in plan.rules if str(rule.codec) == chain)
    return next((codec for codec in codecs if codec.declined(Spec.of(decision.shape)) is not None), None)


def _unfolded(name: str, saved: Mapping[str, Any], stages: int) -> dict[str, Any]:
    """The state of a slot from the form that `checkpoint_save` writes, if nothing is missing."""
    expect_keys("it", expect_mapping("it", saved), ("keys", "stages"), (*_SLOT, "states", "residual"))
    count = expect_count("'stages'", saved["stages"], 0, stages)
    states = expect_mapping("'states'", saved.get("states", {}))
    expect_keys("'states'", states, (), [str(i) for i in range(count)])
    present = {f"states.{i}.{key}" for i, state in states.items() for key in expect_mapping("a state", state)}
    present |= {"residual"} if saved.get("residual") is not None else set()
    lacking = sorted(set(filter(None, expect_text("'keys'", saved["keys"]).split(","))) - present)
    if lacking:
        raise StateError(
            f"the memory of {name!r} came without {', '.join(lacking)}: a new handle cannot tell a checkpoint that"
            " loads in place what to load; use handle.load_distributed(folder)."
        )
    whole = {key: saved[key] for key in _SLOT if key in saved}
    return {**whole, "states": [states.get(str(i), {}) for i in range(count)], "residual": saved.get("residual")}


def _shared_out(name: str, codec: Codec, slots: Sequence[Slot], ranks: int) -> Slot:
    """One of `ranks` equal slots, whose residuals have the same sum as those of `slots`.

    Shared state comes from the rank that has most of it: some stages let one rank keep statistics for all.
    """
    first = slots[0]
    if any(slot.shared(codec) != first.shared(codec) for slot in slots):
        raise StateError(f"this checkpoint has parts of different steps: the ranks' memories of {name!r} differ.")
    for i in range(len(first.states)):
        first.states[i] = max((slot.states[i] for slot in slots), key=len)
    residuals = [residual for slot in slots if (residual := slot.residual) is not None]
    if residuals:
        first.residual = (sum(r.double() for r in residuals) / ranks).to(residuals[0].dtype)  # type: ignore[union-attr]
    for i, stage in enumerate(codec.stages if first.chain else (), codec.offset):
        for key in stage.rank_local if isinstance(stage, InputStage) else ():
            parts = [slot.states[i][key] for slot in slots if key in slot.states[i]]
            if parts:
                first.states[i][key] = torch.stack(parts).sum(0) / ranks
    return first
