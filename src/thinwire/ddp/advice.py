"""Warnings about plans and optimizers that work, but not as their user may think."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from thinwire.core.codec import Codec
from thinwire.core.plan import Decision, Plan
from thinwire.errors import CodecError
from thinwire.stages.importance import Importance
from thinwire.stages.momentum import Momentum

_MOST_REASONS = 4
# What only optimizers that divide by a running mean of squares have in their groups: the Adam family, Adadelta,
# RMSprop, Adagrad. Wrappers around optimizers keep the groups, so that types would say less.
_ADAPTIVE = ("betas", "rho", "centered", "initial_accumulator_value")


def warn_uncompressed(plan: Plan, decisions: Sequence[Decision], stacklevel: int) -> None:
    """Say how little is compressed, if it is less than half of what the plan does not leave out."""
    if plan.rules and not any(rule.compresses for rule in plan.rules):
        return
    meant = [d for d in decisions if not d.left_out]
    total = sum(d.numel for d in meant)
    share = sum(d.numel for d in meant if d.compressed) / total if total else 0.0
    if share >= 0.5:
        return
    what = "nothing: no parameter fits the plan" if share == 0 else f"only {share:.0%} of the elements with the plan"
    warnings.warn(
        f"thinwire will compress {what} {plan} ({_reasons(decisions)}). The plan's decisions (handle.plan, or"
        " Plan.parse(plan).decisions(model.named_parameters())) list every parameter; a rule with codec none for"
        " what shall stay uncompressed ends this warning.",
        RuntimeWarning,
        stacklevel=stacklevel + 1,
    )


def _reasons(decisions: Sequence[Decision]) -> str:
    """Why parameters are not compressed; first the reason for most elements."""
    elements: dict[str, int] = {}
    for d in decisions:
        if not d.compressed:
            elements[d.why] = elements.get(d.why, 0) + d.numel
    ordered = sorted(elements, key=lambda why: (-elements[why], why)) or ["the model has no parameter to train"]
    return "; ".join(ordered[:_MOST_REASONS]) + ("; ..." if len(ordered) > _MOST_REASONS else "")


def check_optimizer(optimizer: Any) -> None:
    if optimizer is not None and not isinstance(getattr(optimizer, "param_groups", None), list):
        raise CodecError(f"optimizer must be a torch.optim.Optimizer; got {type(optimizer).__name__}.")


def warn_optimizer(
    optimizer: Any, names: Mapping[int, str], decisions: Mapping[str, Decision], stacklevel: int
) -> None:
    """Say where an optimizer and the codecs of its parameters do not go together; `names` are by the parameter's id."""
    if optimizer is None:
        return
    codecs = {key: decisions[name].codec for key, name in names.items() if name in decisions}
    used = [(group, codecs[id(p)]) for group in optimizer.param_groups for p in group["params"] if id(p) in codecs]
    twice = [codec for group, codec in used if _momentum_of(group) and _has_momentum(codec)]
    biased = [codec for group, codec in used if _is_adaptive(group) and _is_biased(codec)]
    if twice:
        warnings.warn(
            f"{twice[0]} has momentum in its chain, and {type(optimizer).__name__} has momentum too: together they make"
            " steps many times too long; train with an optimizer without momentum, such as SGD(momentum=0), or take"
            " the momentum out of the chain.",
            RuntimeWarning,
            stacklevel=stacklevel + 1,
        )
    elif biased:
        warnings.warn(
            f"{biased[0]} is biased, and {type(optimizer).__name__} divides by a mean of squared gradients, which late"
            " and missing numbers change; prefer an unbiased codec such as qsgd(bits=4), or watch the loss.",
            RuntimeWarning,
            stacklevel=stacklevel + 1,
        )


def _momentum_of(group: Mapping[str, Any]) -> float:
    betas = group.get("betas")
    return float(betas[0] if betas else group.get("momentum") or 0.0)


def _is_adaptive(group: Mapping[str, Any]) -> bool:
    return any(name in group for name in _ADAPTIVE)


def _has_momentum(codec: Codec) -> bool:
    return any(
        (isinstance(stage, Momentum) and stage.beta > 0) or (isinstance(stage, Importance) and stage.momentum > 0)
        for stage in codec.stages
    )


def _is_biased(codec: Codec) -> bool:
    """More than by rounding to a shorter float."""
    return any(stage.wants_feedback for stage in codec.stages)
