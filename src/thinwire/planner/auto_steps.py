"""When `attach(model, "auto")` looks, tries, keeps and looks again: decisions from times, without a clock."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from thinwire.planner.auto_budget import FEWEST

Phase: TypeAlias = Literal["observe", "try", "watch"]

UNSETTLED = 3  # observed steps that do not count, of few the first half: DDP sorts its buckets anew, caches fill
SKIPPED = 2  # steps with a new plan that do not count
TRIED = 4  # steps with a new plan that do, before each look at them
LONGEST = 16  # of them at most, where the plan is neither clearly quicker nor clearly slower
TRIALS = 3  # plans that are tried, at most
WINDOW = 40  # steps of a look at the training that goes on
CHANGED = 1.3  # a step that takes so many times as long or as short as after the decision, or so much communication
_SPREAD = {1: 0.1, 2: 0.63, 3: 0.43}  # error of the median: of one step its share, of 2 or 3 a share of their range
_LEAST_GAIN = 0.02  # a plan is kept if it saves more than this share of a step, and more than the noise


@dataclass(frozen=True)
class Timing:
    """The times of some steps.

    Args:
        median: Seconds of the median step.
        noise: Standard error of the median, in seconds, estimated from the quartiles, of few steps from their range.
    """

    median: float
    noise: float

    @staticmethod
    def of(seconds: Sequence[float]) -> "Timing":
        """The timing of some steps, at least one."""
        if len(seconds) < 4:
            spread = max(seconds) - min(seconds) if len(seconds) > 1 else seconds[0]
            return Timing(statistics.median(seconds), _SPREAD[len(seconds)] * spread)
        low, middle, high = statistics.quantiles(seconds, n=4)
        # the quartiles of a normal distribution are 1.35 deviations apart; its median has 1.25 times the mean's error
        return Timing(middle, 1.25 * (high - low) / 1.35 / len(seconds) ** 0.5)

    @staticmethod
    def slowest(everyone: Sequence["Timing"]) -> "Timing":
        """That of the slowest rank, for which the others wait."""
        return max(everyone, key=lambda each: (each.median, each.noise))

    def is_less_than(self, other: "Timing") -> bool:
        """Whether steps are shorter by more than the noise of both: two standard errors, at least 2 %."""
        return self.median < other.median - max(self._noise_with(other), _LEAST_GAIN * other.median)

    def is_unclear_beside(self, other: "Timing") -> bool:
        """Whether the noise hides which steps are shorter; not if it hides less than what a plan must save."""
        noise = self._noise_with(other)
        return noise >= max(abs(self.median - other.median), _LEAST_GAIN * other.median)

    def _noise_with(self, other: "Timing") -> float:
        return 2.0 * math.hypot(self.noise, other.noise)


@dataclass
class Steps:
    """Counts the steps of a phase and keeps their times.

    Args:
        phase: `observe`: plain steps; `try`: steps with a plan that may be kept; `watch`: steps after the decision.
        seconds: Times of the steps of this phase, those that do not count included.
        communication: Of these times, what was communication.
        observed: Plain steps to observe; the time of the first one of a training is not known.
        tried: Steps of a trial that count.
        window: Steps between two looks at the training.
        baseline: Seconds of a step, and of its communication, in the first window after the decision.
    """

    phase: Phase = "observe"
    seconds: list[float] = field(default_factory=list)
    communication: list[float] = field(default_factory=list)
    observed: int = FEWEST
    tried: int = TRIED
    window: int = WINDOW
    baseline: tuple[float, float] | None = None
    suspicious: int = 0  # windows in a row in which something had changed

    def begin(self, phase: Phase) -> None:
        """Begin a phase with the next step."""
        self.phase, self.seconds, self.communication = phase, [], []
        self.observed, self.tried = FEWEST, TRIED
        if phase != "watch":
            self.baseline, self.suspicious = None, 0

    def add(self, seconds: float, communication: float = 0.0) -> bool:
        """Note a step; whether the phase has enough of them."""
        self.seconds.append(seconds)
        self.communication.append(communication)
        enough = {"observe": self.observed - 1, "try": SKIPPED + self.tried, "watch": self.window}
        return len(self.seconds) >= enough[self.phase]

    def timing(self) -> Timing:
        """The times of this phase's steps that count."""
        return Timing.of(self.seconds[self._ignored() :])

    def communicated(self) -> float:
        """Seconds of communication in the median step that counts."""
        return Timing.of(self.communication[self._ignored() :]).median

    def _ignored(self) -> int:
        few = min(UNSETTLED, len(self.seconds) // 2)
        return {"observe": few, "try": SKIPPED, "watch": 0}[self.phase]

    def has_changed(self, step: float, communication: float) -> bool:
        """Whether two windows in a row differ from the first one after the decision; the ranks give equal numbers.

        A step with a codec hardly gets shorter when the link gets faster. Its communication does.
        """
        self.seconds, self.communication = [], []
        if self.baseline is None:
            self.baseline = step, communication
            return False
        steps, exchanges = _factor(step, self.baseline[0]), _factor(communication, self.baseline[1])
        large = communication > 0.1 * step or self.baseline[1] > 0.1 * self.baseline[0]
        differs = steps > CHANGED or (large and exchanges > CHANGED**2)
        self.suspicious = self.suspicious + 1 if differs else 0
        return self.suspicious >= 2


def _factor(one: float, other: float) -> float:
    """How many times the larger of two numbers is the smaller one."""
    low, high = sorted((one, other))
    return high / low if low > 0.0 else (1.0 if high <= 0.0 else float("inf"))
