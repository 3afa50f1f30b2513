"""What `auto` learns from plain steps: the link, the model, the codecs, and the plans that are worth a trial."""

import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from torch import nn

from thinwire.planner.auto_budget import Budget
from thinwire.planner.auto_settings import AutoSettings
from thinwire.planner.auto_steps import TRIALS
from thinwire.planner.candidates import checked_candidates, measuring_order
from thinwire.planner.choice import Choice, Choices, choose
from thinwire.planner.figures import measure_codecs
from thinwire.planner.link import SECONDS, measure_link
from thinwire.planner.measure import fitted, profile_of
from thinwire.planner.observe import Observer
from thinwire.planner.predict import predict
from thinwire.planner.profile import Figures, Link, Profile
from thinwire.worlds.distributed import Distributed

_WORTH_MEASURING = 0.05  # share of the plain step that the network adds; below it no codec is measured
_LEAST = 0.05  # seconds for the link, however short the steps are
SAMPLE = 1 << 15  # elements of a layer on which codecs are measured
_WORTH_MEASURED = 0.97  # of the best step so far: what a codec must reach if it had no work to do
_NEAR = 1.2  # plans whose predicted step is within this factor of the best one are tried
_WORTH_TRYING = 0.97  # and at most this share of the plain one's


@dataclass(frozen=True)
class Findings:
    """What was found out about plain steps.

    Args:
        share: The share of the plain step that the network adds, predicted.
        trials: The plans that are worth a trial, the best predicted step first.
        reason: If there are none: why, as one sentence.
        spent: Seconds that measuring took.
        predicted: Seconds of a step with each plan that was compared, predicted.
    """

    share: float = 0.0
    trials: tuple[Choice, ...] = ()
    reason: str = ""
    predicted: Mapping[str, float] = field(default_factory=dict)
    spent: float = 0.0


class Look(Protocol):
    """Looks at plain steps."""

    def begin(self) -> None:
        """Look at the steps from now on."""

    def end(self, budget: Budget) -> Findings:
        """What was found, equal on all ranks, which call it after one step.

        Args:
            budget: The plain step, and what measuring may take.
        """

    def stop(self) -> None:
        """Look no longer."""


class NoLook:
    """One rank trains alone."""

    def begin(self) -> None:
        pass

    def end(self, budget: Budget) -> Findings:
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
            self._observer = weakref.ref(Observer(model, sample=SAMPLE))  # the model's hooks keep it

    def stop(self) -> None:
        if (observer := self._observer()) is not None:
            observer.close()

    def end(self, budget: Budget) -> Findings:
        observer = self._observer()
        failures = self._world.gathered(_failure(observer), "the measurement of the model")
        failed = next(((rank, why) for rank, why in enumerate(failures) if why), None)
        if observer is None or failed is not None:
            rank, why = failed or (self._world.rank, "the model is gone")
            return Findings(reason=f"rank {rank} could not measure its steps ({why}), so that nothing is compressed")
        measuring = Measuring(self._world, self._settings, budget)
        profile = profile_of(observer, self._world, (), link=measuring.link(self._world))
        observer.close()
        profile = fitted(profile, budget.plain)
        share = max(0.0, 1.0 - profile.model.step / budget.plain)
        if (dense := not_worth(share)) is not None:
            return dense
        profile = measuring.with_codecs(profile, self._world, observer.samples)
        return findings(choose(profile, self._settings.quality), share, measuring.spent())


def not_worth(share: float) -> Findings | None:
    """What is found if the network adds so little that no codec is measured."""
    if share >= _WORTH_MEASURING:
        return None
    return Findings(share, reason=f"the network adds {100 * share:.0f} % to a step: compression would not pay")


class Measuring:
    """Measures within a budget; all ranks that train the model do it at the same time.

    Args:
        everyone: All ranks that train the model.
        settings: What may be chosen.
        budget: What measuring may take.
    """

    def __init__(self, everyone: Distributed, settings: AutoSettings, budget: Budget) -> None:
        self._everyone, self._settings, self._budget = everyone, settings, budget
        self._began = time.perf_counter()

    def spent(self) -> float:
        """Seconds so far, on the slowest rank."""
        mine = time.perf_counter() - self._began
        return float(max(self._everyone.gathered(mine, "the time of measurements")))

    def link(self, world: Distributed) -> Link:
        """The link of this group, a part of those that train or all of them."""
        return measure_link(world, min(SECONDS, max(_LEAST, self._budget.link)), rates=False)

    def with_codecs(self, profile: Profile, world: Distributed, samples: Mapping[str, Any]) -> Profile:
        """The profile with figures of as many candidates as there is time for, at least of the first one.

        Candidates that would be too slow even if they had no work to do are passed over.
        """
        found = dict(profile.codecs)
        best = predict(profile, "none").step
        before, longest = self.spent(), 0.0
        until = before + self._budget.codecs
        for number, codec in enumerate(measuring_order(checked_candidates(self._settings.candidates))):
            now = self.spent() if number else before  # all ranks ask as often
            longest, before = max(longest, now - before), now
            if number and now + longest > until:
                break
            if least_step(profile, codec) > _WORTH_MEASURED * best:
                continue
            found |= (measured := measure_codecs(world, (codec,), profile.model.layers, samples))
            known = replace(profile, codecs=found)
            admitted = choose(known, self._settings.quality, tuple(measured)).admitted
            best = min([best, *(each.prediction.step for each in admitted)])
        return replace(profile, codecs=found)


def least_step(profile: Profile, codec: str) -> float:
    """Seconds of a step with a codec that would take no time to encode and decode."""
    idle = {layer.name: Figures(0.0, 0.0, 0.0) for layer in profile.model.layers}
    return predict(replace(profile, codecs={codec: idle}), codec).step


def findings(choices: Choices, share: float, spent: float = 0.0) -> Findings:
    """The plans worth a trial: those whose predicted step is near the best one and less than the plain one."""
    predicted = {each.codec: each.prediction.step for each in (choices.plain, *choices.admitted)}
    best = choices.admitted[0].prediction.step if choices.admitted else 0.0
    limit = min(_NEAR * best, _WORTH_TRYING * choices.plain.prediction.step)
    trials = tuple(each for each in choices.admitted if each.prediction.step <= limit)[:TRIALS]
    reason = "" if trials else "no codec that the quality allows is predicted to make the step shorter"
    return Findings(share, trials, reason, predicted, spent)


def _failure(observer: Observer | None) -> str:
    """Why the steps of this rank cannot be measured; empty if they can."""
    if observer is None:
        return "the model is gone"
    try:
        observer.observed()
    except Exception as reason:  # whatever it is, the training goes on without compression
        return str(reason) or type(reason).__name__
    return ""
