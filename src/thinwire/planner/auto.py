"""`attach(model, "auto")`: look at plain steps, choose a plan, try it, keep what is quicker, and go on watching."""

import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from thinwire.core.plan import Plan
from thinwire.ddp.consistency import check_agreement
from thinwire.ddp.handle import Handle
from thinwire.ddp.metrics import StepMetrics
from thinwire.ddp.single_handle import SingleHandle
from thinwire.errors import CodecError
from thinwire.planner.auto_budget import FEWEST, Budget
from thinwire.planner.auto_look import DDPLook, Findings, Look, NoLook
from thinwire.planner.auto_record import AutoDecision, read_saved, saved_text
from thinwire.planner.auto_settings import AutoSettings
from thinwire.planner.auto_steps import LONGEST, TRIED, Steps, Timing
from thinwire.planner.choice import Choice
from thinwire.worlds.distributed import Distributed
from thinwire.worlds.peers import Peers, Solo

_RAREST = 640  # steps between two looks at a training whose link varies all the time


def choose_for(handle: Handle, model: nn.Module, settings: AutoSettings, timeout: timedelta | None = None) -> "Auto":
    """Let `auto` choose the plan of a handle that compresses nothing yet; all ranks call it with equal settings.

    Args:
        handle: The handle.
        model: What it is attached to.
        settings: What may be chosen.
        timeout: A rank that does not call it for this long is an error.
    """
    if isinstance(model, DistributedDataParallel):
        world = Distributed(model.process_group)
        look: Look = DDPLook(model, world, settings) if world.ranks > 1 else NoLook()
    elif isinstance(handle, SingleHandle):
        return Auto(handle, Solo(), NoLook())
    else:
        from thinwire.planner.auto_shards import ShardLook, sharded  # at use: torch's FSDP takes long to import

        world = sharded(handle).everyone
        look = ShardLook(sharded(handle), model, settings)
    check_agreement(world, {"auto": str(settings)}, "attach", timeout)
    return Auto(handle, world, look)


class Auto:
    """Chooses the plan of a handle while the model trains. All ranks decide alike, after the same step.

    Times of all ranks are exchanged before each decision, and the slowest rank counts. `handle.decisions` has what was
    decided.
    """

    def __init__(
        self, handle: Handle, world: Peers, look: Look, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.decisions: list[AutoDecision] = []
        self._handle, self._world, self._look, self._clock = handle, world, look, clock
        self._steps = Steps()
        self._last: float | None = None  # when the step before ended
        self._plain = Timing(0.0, 0.0)
        self._found = Findings()
        self._left = 0.0  # seconds for further trials
        self._trials: list[Choice] = []
        self._tried: list[tuple[Choice, Timing]] = []
        self._start_again = False
        self._look.begin()
        handle.on_step.append(self._on_step)
        handle.chooser = self

    def _on_step(self, metrics: StepMetrics) -> None:
        """A step has ended; all ranks come here after the same step."""
        now, before = self._clock(), self._last
        self._last = now
        if self._start_again:
            self._start_again = False
            self._observe()
        elif before is not None and self._steps.add(now - before, metrics.communicate_seconds):
            {"observe": self._on_observed, "try": self._on_tried, "watch": self._on_window}[self._steps.phase]()
            self._last = self._clock()

    def _observe(self) -> None:
        """Go back to plain steps and look at them."""
        self._use("none")
        self._look.begin()
        self._steps.begin("observe")

    def _on_observed(self) -> None:
        """Some plain steps are over: observe more, or measure, and try the plans that are predicted to be quicker."""
        mine = self._steps.timing(), self._steps.communicated()
        everyone = self._world.gathered(mine, "the timing of auto")
        self._plain = Timing.slowest([timing for timing, _ in everyone])
        waited = min(self._plain.median, *(seconds for _, seconds in everyone))
        budget = Budget(self._plain.median, waited, self._steps.observed)
        if budget.steps > budget.observed == FEWEST:
            self._steps.observed = budget.steps
            return
        self._found = self._look.end(budget)
        self._look.stop()
        self._left = budget.left - self._found.spent
        self._trials, self._tried = list(self._found.trials), []
        self._try_next()

    def _try_next(self) -> None:
        """Try the next plan that works here: not every chain does in a reduce-scatter."""
        while self._trials and (self._left > 0.0 or not self._tried):
            try:
                self._use(self._trials[0].plan)
            except CodecError:
                self._trials.pop(0)
            else:
                self._steps.begin("try")
                return
        if self._tried:
            self._settle()
        else:
            self._keep("none", self._found.reason or "no codec that the quality allows works with this model")

    def _on_tried(self) -> None:
        """Some steps of a trial are over: go on where their times vary too much to tell, or try the next plan."""
        steps, timing = len(self._steps.seconds), self._agreed()
        best = min(self._plain.median, timing.median, *(each.median for _, each in self._tried))
        left = self._left - steps * (timing.median - best)
        if left > 0.0 and self._steps.tried < LONGEST and timing.is_unclear_beside(self._plain):
            self._steps.tried += TRIED
            return
        self._left = left
        self._tried.append((self._trials.pop(0), timing))
        self._try_next()

    def _settle(self) -> None:
        """Keep the plan with the shortest measured step, if that is shorter than plain by more than the noise."""
        choice, timing = min(self._tried, key=lambda each: each[1].median)
        plain = f"{1e3 * self._plain.median:.0f} ms"
        if timing.is_less_than(self._plain):
            gain = f"{self._plain.median / timing.median:.2f} times as fast"
            self._keep(choice.plan, f"a step takes {1e3 * timing.median:.0f} ms, a plain one {plain}: {gain}")
        else:
            self._keep("none", f"the quickest plan took {1e3 * timing.median:.0f} ms a step, a plain step {plain}")

    def _keep(self, plan: "Plan | str", reason: str) -> None:
        plan = Plan.parse(plan)
        again = bool(self.decisions) and self.decisions[-1].plan == str(plan)
        self._use(plan)
        measured = {each.codec: timing.median for each, timing in self._tried}
        share, predicted = self._found.share, self._found.predicted
        step, plain = self._handle.step, self._plain.median
        self.decisions.append(AutoDecision(step, str(plan), reason, plain, share, predicted, measured))
        self._steps.begin("watch")
        if again:
            self._steps.window = min(2 * self._steps.window, _RAREST)
        if self._world.rank == 0:
            print(f"thinwire auto, step {step}: {self._shown()}; {reason}", file=sys.stderr, flush=True)

    def _on_window(self) -> None:
        """Look whether a step, or what it communicates, takes another time than after the decision."""
        mine = self._steps.timing().median, Timing.of(self._steps.communication).median
        everyone = self._world.gathered(mine, "the watch of auto")
        if self._steps.has_changed(max(step for step, _ in everyone), max(seconds for _, seconds in everyone)):
            self._observe()

    def _agreed(self) -> Timing:
        return Timing.slowest(self._world.gathered(self._steps.timing(), "the timing of auto"))

    def _use(self, plan: "Plan | str") -> None:
        if str(self._handle.engine.plan) != str(Plan.parse(plan)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # what is not compressed is told below
                self._handle.use(plan)

    def _shown(self) -> str:
        """The codecs in force, with the number of their parameters."""
        counts = Counter(str(decision.codec) for decision in self._handle.plan)
        return ", ".join(f"{codec} for {count} parameters" for codec, count in counts.most_common())

    # Checkpoints: a resumed run goes on with its plan, and does not measure again.

    def save(self) -> str:
        """The decisions as text, for a checkpoint."""
        return saved_text(self.decisions, self._steps.phase == "watch" and not self._start_again)

    def check(self, text: str) -> None:
        """Raise a StateError if `load` could not read it."""
        read_saved(text)

    def load(self, text: str) -> None:
        """Go on with what `save` gave; a run that had not decided looks again, from the next step on."""
        self.decisions, decided = read_saved(text)
        self._look.stop()
        self._last, self._start_again = None, not decided
        self._steps.begin("watch")
