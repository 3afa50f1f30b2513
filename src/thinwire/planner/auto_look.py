"""What `auto` learns from plain steps: the link, the model, the codecs, and the plans that are worth a trial."""

import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from torch import nn

from thinwire.planner.auto_settings import AutoSettings
from thinwire.planner.auto_steps import TRIALS
from thinwire.planner.candidates import checked_candidates, measuring_order
from thinwire.planner.choice import Choice, Choices, choose
from thinwire.planner.figures import measure_codecs
from thinwire.planner.link import SECONDS
from thinwire.planner.measure import profile_of
from thinwire.planner.observe import Observer
from thinwire.planner.profile import Profile
from thinwire.worlds.distributed import Distributed

BUDGET = 12.0  # steps' time that measuring may take, of a run of 1,000
_WORTH_MEASURING = 0.05  # share of the plain step that the network adds; below it no codec is measured
_NEAR = 1.35  # plans whose predicted step is within this factor of the best one are tried
_WORTH_TRYING = 0.97  # and at most this share of the plain one's


@dataclass(frozen=True)
class Findings:
    """What was found out about plain steps.

    Args:
        share: The share of the plain step that the network adds, predicted.
        trials: The plans that are worth a trial, the best predicted step first.
        reason: If there are none: why, as one sentence.
        predicted: Seconds of a step with each plan that was compared, predicted.
    """

    share: float = 0.0
    trials: tuple[Choice, ...] = ()
    reason: str = ""
    predicted: Mapping[str, float] = field(default_factory=dict)


class Look(Protocol):
    """Looks at plain steps."""

    def begin(self) -> None:
        """Look at the steps from now on."""

    def end(self, plain: float, communication: float) -> Findings:
        """What was found, equal on all ranks, which call it after one step.

        Args:
            plain: Seconds of a plain step.
            communication: Seconds of it in which this rank exchanged gradients, or waited for them.
        """

    def stop(self) -> None:
        """Look no longer."""


class NoLook:
    """One rank trains alone."""

    def begin(self) -> None:
        pass

    def end(self, plain: float, communication: float) -> Findings:
        return Findings(reason="nothing is sent: one rank trains alone")

    def stop(self) -> None:
        pass


class DDPLook:
    """Looks at the steps of a DDP model."""

    def __init__(self, model: nn.Module, world: Distributed, settings: AutoSettings) -> None:
        self._model = weakref.ref(model)  # it refers to what looks at it
        self._observer: Callable[[], Observer | None] = lambda: None
        self._world, self._settings = world, settings

    def begin(self) -> None:
        model = self._model()
        if model is not None:
            self._observer = weakref.ref(Observer(model))  # the model's hooks keep it

    def stop(self) -> None:
        if (observer := self._observer()) is not None:
            observer.close()

    def end(self, plain: float, communication: float) -> Findings:
        observer = self._observer()
        failures = self._world.gathered(_failure(observer), "the measurement of the model")
        failed = next(((rank, why) for rank, why in enumerate(failures) if why), None)
        if observer is None or failed is not None:
            rank, why = failed or (self._world.rank, "the model is gone")
            return Findings(reason=f"rank {rank} could not measure its steps ({why}), so that nothing is compressed")
        began, budget = time.perf_counter(), BUDGET * plain
        profile = profile_of(observer, self._world, (), min(SECONDS, max(0.1, budget / 3)))
        observer.close()
        share = max(0.0, 1.0 - profile.model.step / plain)
        if (dense := not_worth(share)) is not None:
            return dense
        spent = max(self._world.gathered(time.perf_counter() - began, "the measurement of the link"))
        profile = with_codecs(profile, self._world, observer.samples, self._settings, budget - spent)
        return findings(choose(profile, self._settings.quality), share)


def not_worth(share: float) -> Findings | None:
    """What is found if the network adds so little that no codec is measured."""
    if share >= _WORTH_MEASURING:
        return None
    return Findings(share, reason=f"the network adds {100 * share:.0f} % to a step: compression would not pay")


def with_codecs(
    profile: Profile,
    world: Distributed,
    samples: Mapping[str, Any],
    settings: AutoSettings,
    seconds: float,
    everyone: Distributed | None = None,
) -> Profile:
    """The profile with figures of as many candidates as there is time for, at least one.

    `everyone`: all ranks that train the model, if `world` has a part of them.
    """
    everyone = everyone or world
    found = dict(profile.codecs)
    for codec in measuring_order(checked_candidates(settings.candidates)):
        began = time.perf_counter()
        found |= measure_codecs(world, (codec,), profile.model.layers, samples)
        seconds -= max(everyone.gathered(time.perf_counter() - began, "the measurement of codecs"))
        if seconds <= 0.0 and found:
            break
    return replace(profile, codecs=found)


def findings(choices: Choices, share: float) -> Findings:
    """The plans worth a trial: those whose predicted step is near the best one and less than the plain one."""
    predicted = {each.codec: each.prediction.step for each in (choices.plain, *choices.admitted)}
    best = choices.admitted[0].prediction.step if choices.admitted else 0.0
    limit = min(_NEAR * best, _WORTH_TRYING * choices.plain.prediction.step)
    trials = tuple(each for each in choices.admitted if each.prediction.step <= limit)[:TRIALS]
    reason = "" if trials else "no codec that the quality allows is predicted to make the step shorter"
    return Findings(share, trials, reason, predicted)


def _failure(observer: Observer | None) -> str:
    """Why the steps of this rank cannot be measured; empty if they can."""
    if observer is None:
        return "the model is gone"
    try:
        observer.model()
    except Exception as reason:  # whatever it is, the training goes on without compression
        return str(reason) or type(reason).__name__
    return ""
