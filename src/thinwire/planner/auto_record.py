"""What `auto` has decided, and its form in a checkpoint."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from thinwire.core.checks import expect_count, expect_keys, expect_mapping, expect_number, expect_text
from thinwire.core.plan import Plan
from thinwire.errors import StateError

_MOST_DECISIONS = 100
_VERSION = 1


@dataclass(frozen=True)
class AutoDecision:
    """What was decided after a step, and why.

    Args:
        step: Steps of the training that had ended.
        plan: The plan in force from then on, as text.
        reason: One sentence.
        plain_seconds: A step without compression, measured.
        network_share: The share of the plain step that the network adds, predicted.
        predicted: Seconds of a step with each plan that was compared, predicted.
        measured: Seconds of a step with each plan that was tried, measured.
    """

    step: int
    plan: str
    reason: str
    plain_seconds: float
    network_share: float
    predicted: Mapping[str, float] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)


def saved_text(decisions: Sequence[AutoDecision], decided: bool) -> str:
    """The decisions as text, for a checkpoint; `decided`: the plan in force is the last decision's."""
    recent = [asdict(each) for each in decisions[-_MOST_DECISIONS:]]
    return json.dumps({"version": _VERSION, "decided": decided, "decisions": recent})


def read_saved(text: str) -> tuple[list[AutoDecision], bool]:
    """What `saved_text` has written, checked."""
    try:
        saved = expect_mapping("'auto' in this checkpoint", json.loads(text))
    except ValueError as reason:
        raise StateError(f"'auto' in this checkpoint is not JSON: {reason}.") from reason
    expect_keys("'auto' in this checkpoint", saved, ("version", "decided", "decisions"))
    if expect_count("its version", saved["version"]) != _VERSION:
        raise StateError(
            f"'auto' in this checkpoint has version {saved['version']}, and this thinwire reads {_VERSION}."
        )
    if not isinstance(saved["decided"], bool) or not isinstance(saved["decisions"], list):
        raise StateError("'auto' in this checkpoint needs a truth value 'decided' and a list 'decisions'.")
    for each in saved["decisions"][:_MOST_DECISIONS]:
        _check_decision(expect_mapping("a decision of auto", each))
    decisions = [AutoDecision(**each) for each in saved["decisions"][:_MOST_DECISIONS]]
    return decisions, saved["decided"]


def _check_decision(saved: Mapping[str, Any]) -> None:
    names = ("step", "plan", "reason", "plain_seconds", "network_share", "predicted", "measured")
    expect_keys("a decision of auto", saved, names)
    expect_count("its step", saved["step"])
    Plan.parse(expect_text("its plan", saved["plan"]))
    expect_text("its reason", saved["reason"])
    for name in ("plain_seconds", "network_share"):
        expect_number(f"its {name}", saved[name], 0.0)
    for name in ("predicted", "measured"):
        for codec, seconds in expect_mapping(f"its {name}", saved[name]).items():
            expect_number(f"the seconds of {codec}", seconds, 0.0)
