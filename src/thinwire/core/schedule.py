"""How much a stage keeps at a step, and when to keep more: pure functions of numbers that all ranks share.

A density in a chain is what a run settles at. A warm-up lets it come down from 1 to that. Theory wants the dropped
share theta = 1 - density to diminish with the learning rate (Wang et al., HPDC 2020): `decay` does so with the step,
and the `dial` of a slot does it on demand: it multiplies theta, and 0 means that nothing is dropped.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from thinwire.core.checks import expect_count, expect_keys, expect_mapping, expect_number
from thinwire.errors import CodecError, StateError


def density_at(density: float, step: int, warmup: int = 0, decay: int | None = None, dial: float = 1.0) -> float:
    """The density at a step (from 0): 1 - dial * (1 - density^w) / sqrt(1 + step / decay).

    w = min(1, (step + 1) / (warmup + 1)): the density falls by one factor at each step of the warm-up, as in DGC
    (Lin et al., ICLR 2018). A dial outside [0, 1] counts as the nearer end.
    """
    if step < warmup:
        density = density ** ((step + 1) / (warmup + 1))
    dropped = (1.0 - density) * min(max(dial, 0.0), 1.0)
    if decay is not None:
        dropped /= math.sqrt(1.0 + step / decay)
    return density if dropped == 1.0 - density else 1.0 - dropped


def dial_for_rate(rate: float, first: float) -> float:
    """The dial that makes theta follow the learning rate: its share of the first one, at most 1."""
    if not first > 0.0:
        raise CodecError(f"the first learning rate must be above 0; got {first}.")
    return min(max(rate / first, 0.0), 1.0)


@dataclass
class LossGuard:
    """Watches the loss and turns the dial down when it rises: theta is halved, then dropped to 0; later it recovers.

    The loss is smoothed over about `window` steps, and so is its distance from that. It is too high when, smoothed,
    it lies more than `tolerance` (a share) plus three such distances above the lowest it has been, or is not finite.
    Every cut multiplies the dial by `cut`; below `least` it becomes 0. The next cut waits a window, and after
    `recovery` quiet steps one cut is taken back. Feed all ranks the same loss (an averaged one), and they turn alike.

        guard = LossGuard()
        slot.dial = guard.feed(loss)
    """

    tolerance: float = 0.1
    window: int = 50
    recovery: int = 200
    cut: float = 0.5
    least: float = 0.1
    dial: float = 1.0
    seen: int = 0
    smooth: float = 0.0
    spread: float = 0.0
    lowest: float = math.inf
    quiet: int = 0

    def __post_init__(self) -> None:
        if not (0.0 < self.cut < 1.0 and self.window >= 1 and self.recovery >= 1 and self.tolerance >= 0.0):
            raise CodecError(
                f"a LossGuard needs 0 < cut < 1, window and recovery of at least 1, and tolerance of at least 0;"
                f" got cut={self.cut}, window={self.window}, recovery={self.recovery}, tolerance={self.tolerance}."
            )

    def feed(self, loss: float) -> float:
        """Take in the loss of one step; returns the dial for the next."""
        finite = math.isfinite(loss)
        if finite:
            self._follow(loss)
        self.quiet += 1
        if not finite or (self.seen >= self.window and self.smooth > self.bound()):
            self._back_off()
        elif self.dial < 1.0 and self.quiet >= self.recovery:
            self.dial = min(1.0, self.dial / self.cut) if self.dial > 0.0 else self.least
            self.quiet = 0
        return self.dial

    def bound(self) -> float:
        """The smoothed loss above which the guard backs off."""
        return self.lowest + self.tolerance * abs(self.lowest) + 3.0 * self.spread / math.sqrt(self.window)

    def _follow(self, loss: float) -> None:
        self.seen += 1
        weight = max(1.0 / self.seen, 1.0 / self.window)  # a plain mean until the window is full
        distance = abs(loss - self.smooth) if self.seen > 1 else 0.0
        self.smooth += weight * (loss - self.smooth)
        self.spread += weight * (distance - self.spread)
        if self.seen >= self.window:
            self.lowest = min(self.lowest, self.smooth)

    def _back_off(self) -> None:
        """Cut once for each window that the loss stays too high."""
        if self.dial == 1.0 or self.quiet >= self.window:
            self.dial = self.dial * self.cut if self.dial * self.cut >= self.least else 0.0
            self.quiet = 0

    def state_dict(self) -> dict[str, float]:
        return asdict(self)

    @staticmethod
    def from_state_dict(saved: Mapping[str, Any]) -> "LossGuard":
        """A guard that goes on where the saved one stopped."""
        names = tuple(f.name for f in fields(LossGuard))
        try:
            expect_keys("it", expect_mapping("it", saved), names)
            for name in ("window", "recovery", "seen", "quiet"):
                expect_count(f"{name!r}", saved[name])
            for name in ("tolerance", "cut", "least", "smooth", "spread"):
                expect_number(f"{name!r}", saved[name])
            expect_number("'dial'", saved["dial"], 0.0, 1.0)
            if not (isinstance(saved["lowest"], float) and saved["lowest"] == math.inf):  # before a window is full
                expect_number("'lowest'", saved["lowest"])
            return LossGuard(**saved)
        except (StateError, CodecError) as reason:
            raise StateError(f"this is not the saved state of a LossGuard: {reason}") from reason
