"""How long a run trains: a number of steps, or seconds of training.

All ranks call `count` after each step. A budget then tells the loop three things: `schedule_step`, where the next step
is in the schedule that the recipe has for `recipe.steps` steps; `evaluates`, whether an evaluation is due; and
`is_over`, whether the counted step was the last one. `total_steps` is None where nobody knows it in advance.
"""

import math

from thinwire_lab.recipes.errors import RecipeError
from thinwire_lab.recipes.place import Clock, Place
from thinwire_lab.recipes.recipe import Recipe

EVALUATIONS = 10  # of a run whose length is given in seconds, at equal distances


class StepBudget:
    """The steps of the recipe, with an evaluation every `recipe.evaluate_every` steps."""

    def __init__(self, recipe: Recipe, first: int) -> None:
        self.recipe, self.total_steps = recipe, recipe.steps
        self.schedule_step: float = first
        self.evaluates = self.is_over = False

    def count(self, done: int) -> None:
        every = self.recipe.evaluate_every
        self.schedule_step, self.is_over = done, done >= self.recipe.steps
        self.evaluates = self.is_over or (every > 0 and done % every == 0)


class TimeBudget:
    """Seconds of training by the clock of the first rank, as many steps as fit.

    The last step is the one during which the time runs out. The first rank's clock is broadcast after every `every`
    steps, so that all ranks have the same learning rate and stop at the same step.
    """

    total_steps = None

    def __init__(self, recipe: Recipe, seconds: float, clock: Clock, place: Place, every: int = 1) -> None:
        check_seconds(seconds)
        self.recipe, self.seconds, self.clock, self.place, self.every = recipe, seconds, clock, place, every
        self.evaluates = False
        self._share = self._passed()

    def count(self, done: int) -> None:
        before = self._share
        if done % self.every == 0:
            self._share = self._passed()
        self.evaluates = self.is_over or int(EVALUATIONS * self._share) > int(EVALUATIONS * before)

    @property
    def is_over(self) -> bool:
        return self._share >= 1.0

    @property
    def schedule_step(self) -> float:
        return min(1.0, self._share) * self.recipe.steps

    def _passed(self) -> float:
        """The share of the time that has passed, equal on all ranks."""
        return self.place.of_first_rank(self.clock.read()) / self.seconds


Budget = StepBudget | TimeBudget


def check_seconds(seconds: float) -> None:
    if not (seconds > 0 and math.isfinite(seconds)):
        raise RecipeError(f"seconds of training must be a number greater than 0, not {seconds}.")
