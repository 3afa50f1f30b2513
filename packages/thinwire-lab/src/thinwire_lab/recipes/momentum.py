"""Momentum belongs either to the chain or to the optimiser: two of 0.9 multiply to steps ten times too long."""

from collections.abc import Iterable

from torch import Tensor

from thinwire import Codec, Plan
from thinwire.stages.importance import Importance
from thinwire.stages.momentum import Momentum


def chain_momentum(codec: Codec) -> float:
    """The share of the velocity that a chain keeps from step to step; 0 if it leaves momentum to the optimiser."""
    for stage in codec.stages:
        if isinstance(stage, Momentum):
            return stage.beta
        if isinstance(stage, Importance):
            return stage.momentum
    return 0.0


def momenta_of(plan: Plan | None, parameters: Iterable[tuple[str, Tensor]]) -> dict[str, float]:
    """Parameter -> momentum of the chain that it travels through; small parameters travel through none."""
    return {} if plan is None else {d.name: chain_momentum(d.codec) for d in plan.decisions(parameters)}


def where_momentum_is(plan: Plan | None) -> str:
    """`chain` if a rule of the plan carries it, `optimiser` otherwise."""
    rules = plan.rules if plan is not None else ()
    return "chain" if any(chain_momentum(rule.codec) for rule in rules) else "optimiser"
