"""What `attach(model, "auto")` may spend: the time of a few steps of a run of 1,000."""

from dataclasses import dataclass

SPENT = 13.0  # steps' time that observing, measuring and trials may take together, beyond the steps that they make
FEWEST, MOST = 3, 9  # plain steps that are observed
_OBSERVING = 1 / 3  # of the time; the other parts are of what observing leaves
_LINK, _CODECS = 0.25, 0.4
_SHORTER = 5.0  # times as short: a wait for the network with the codecs that `auto` usually keeps


@dataclass(frozen=True)
class Budget:
    """The time that `auto` may take until it has decided; equal on all ranks if its figures are.

    A run with `auto` is compared with one that has the best plan from its first step on. A plain step costs what it is
    longer than the step that is hoped for, so that few are observed where compression may save much.

    Args:
        plain: Seconds of a plain step.
        waited: Seconds of it in which all ranks wait for the network.
        observed: Plain steps that have been made.
    """

    plain: float
    waited: float
    observed: int = FEWEST

    @property
    def hoped(self) -> float:
        """Seconds of the step that is hoped for."""
        return self.plain - self.waited * (1.0 - 1.0 / _SHORTER)

    @property
    def steps(self) -> int:
        """Plain steps that are worth observing."""
        each = self.plain - self.hoped
        fitting = _OBSERVING * SPENT * self.hoped
        return max(FEWEST, min(MOST, int(fitting / each))) if each * MOST > fitting else MOST

    @property
    def left(self) -> float:
        """Seconds for all that follows the plain steps."""
        return max(0.0, SPENT * self.hoped - self.observed * (self.plain - self.hoped))

    @property
    def link(self) -> float:
        """Seconds for the measurement of the link."""
        return _LINK * self.left

    @property
    def codecs(self) -> float:
        """Seconds for the measurement of codecs, which takes at least as long as one of them needs."""
        return _CODECS * self.left
