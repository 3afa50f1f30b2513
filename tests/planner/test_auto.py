"""What `auto` decides, with times that are given instead of measured."""

import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.planner import profiles
from thinwire.core.plan import Plan
from thinwire.errors import StateError
from thinwire.planner.auto import Auto
from thinwire.planner.auto_budget import FEWEST, MOST, SPENT, Budget
from thinwire.planner.auto_look import Findings, findings
from thinwire.planner.auto_steps import LONGEST, SKIPPED, TRIED, WINDOW, Timing
from thinwire.planner.choice import choose
from thinwire.worlds.peers import Solo

PLAIN = 0.5
FIRST = FEWEST


class FakeHandle:
    """What `Auto` needs of a handle."""

    def __init__(self) -> None:
        self.engine = SimpleNamespace(plan=Plan.parse("none"))
        self.on_step: list[Callable[[Any], None]] = []
        self.plan: list[Any] = []
        self.chooser: Any = None
        self.step = 0
        self.used: list[str] = []

    def use(self, plan: Any) -> None:
        self.engine.plan = Plan.parse(plan)
        self.used.append(str(self.engine.plan))


class FakeLook:
    """Gives findings without looking."""

    def __init__(self, found: Findings) -> None:
        self.found, self.looks = found, 0

    def begin(self) -> None:
        self.looks += 1

    def end(self, budget: Budget) -> Findings:
        return self.found

    def stop(self) -> None:
        pass


class Training:
    """Steps whose times are told."""

    def __init__(self, found: Findings, world: Any = None) -> None:
        self.now = 0.0
        self.handle, self.look = FakeHandle(), FakeLook(found)
        self.auto = Auto(self.handle, world or Solo(), self.look, lambda: self.now)  # type: ignore[arg-type]

    def steps(self, count: int, seconds: Callable[[str, int], float], communication: float = 0.4) -> None:
        """`seconds` is asked with the plan in force and the number of the step."""
        for _ in range(count):
            self.now += seconds(self.plan, self.handle.step)
            self.handle.step += 1
            for function in self.handle.on_step:
                function(SimpleNamespace(communicate_seconds=communication))

    @property
    def plan(self) -> str:
        return str(self.handle.engine.plan)


def thin(quality: str = "safe") -> Findings:
    return findings(choose(profiles.thin(), quality), 0.9)


def quicker(plan: str, step: int) -> float:
    return PLAIN if plan == "none" else 0.1


def test_a_thin_link_gets_the_plan_that_is_predicted_and_measured_to_be_best() -> None:
    training = Training(thin())
    training.steps(FIRST + 3 * (SKIPPED + TRIED), quicker)
    (decision,) = training.auto.decisions
    assert decision.plan == training.plan != "none"
    assert decision.predicted[next(iter(decision.measured))] == min(decision.predicted.values())
    assert decision.plain_seconds == pytest.approx(PLAIN)
    assert "5.00 times as fast" in decision.reason


def test_of_several_trials_the_one_that_is_measured_quickest_is_kept() -> None:
    found = thin("bold")
    assert len(found.trials) > 1
    last = str(found.trials[-1].plan)
    training = Training(found)
    training.steps(
        FIRST + len(found.trials) * (SKIPPED + TRIED), lambda plan, _: {"none": PLAIN, last: 0.1}.get(plan, 0.2)
    )
    assert training.plan == last
    assert len(training.auto.decisions[0].measured) == len(found.trials)


@pytest.mark.parametrize("tried", [PLAIN, 0.99 * PLAIN, 2 * PLAIN])
def test_a_plan_that_is_not_quicker_when_measured_is_not_kept(tried: float) -> None:
    training = Training(thin())
    training.steps(200, lambda plan, _: PLAIN if plan == "none" else tried)
    assert training.plan == "none"
    assert training.handle.used[-1] == "none"
    assert "a plain step 500 ms" in training.auto.decisions[0].reason


def test_a_gain_within_the_noise_is_not_kept() -> None:
    wild = [0.2, 0.9, 0.3, 0.8, 0.45, 0.6, 0.25, 0.85]
    training = Training(thin())
    training.steps(200, lambda plan, step: wild[step % 8] * (1.0 if plan == "none" else 0.95))
    assert training.plan == "none"


def test_a_trial_with_a_slow_step_goes_on_until_it_is_clear() -> None:
    found = replace(thin(), trials=thin().trials[:1])
    training = Training(found)
    training.steps(FIRST + SKIPPED + TRIED - 1, lambda plan, _: PLAIN if plan == "none" else 0.35)
    training.steps(1, lambda *_: 1.5)
    assert training.plan == found.trials[0].codec
    assert not training.auto.decisions
    training.steps(LONGEST - TRIED, lambda *_: 0.35)
    assert training.plan == training.auto.decisions[0].plan == found.trials[0].codec


@pytest.mark.parametrize("spent", [0.0, 1000.0])
def test_a_trial_ends_that_never_gets_clear_or_costs_too_much(spent: float) -> None:
    found = replace(thin(), trials=thin().trials[:1], spent=spent)
    training = Training(found)
    wild = [0.2, 0.9, 0.3, 0.7]
    steps = TRIED if spent else LONGEST
    training.steps(FIRST + SKIPPED + steps - 1, lambda plan, step: PLAIN if plan == "none" else wild[step % 4])
    assert training.auto.decisions == []
    training.steps(1, lambda *_: 0.9)
    assert training.plan == "none"


def test_a_fast_link_stays_plain_without_any_trial() -> None:
    training = Training(findings(choose(profiles.fast()), 0.02))
    training.steps(200, quicker)
    assert training.handle.used == []
    assert "no codec" in training.auto.decisions[0].reason
    assert training.auto.decisions[0].measured == {}


def test_a_sensitive_layer_is_spared() -> None:
    profile = profiles.thin()
    for codec in profiles.CODECS:
        of_layers = dict(profile.codecs[codec])
        of_layers["layer3.weight"] = replace(of_layers["layer3.weight"], error=30.0, bias=0.9)
        profile = replace(profile, codecs={**profile.codecs, codec: of_layers})
    training = Training(findings(choose(profile), 0.9))
    training.steps(200, quicker)
    decided = training.handle.engine.plan.decide("layer3.weight", (512, 256))
    assert not decided.codec.stages
    assert training.plan != "none"


@pytest.mark.parametrize("factor", [1.5, 0.5])
def test_a_training_that_changes_is_looked_at_again(factor: float) -> None:
    training = Training(thin())
    training.steps(200, quicker)
    assert len(training.auto.decisions) == 1
    training.steps(4 * WINDOW, lambda plan, step: factor * quicker(plan, step))
    assert len(training.auto.decisions) == 2
    assert training.look.looks == 2
    assert training.auto.decisions[1].plain_seconds == pytest.approx(factor * PLAIN)


def test_a_link_that_gets_faster_shows_in_the_communication() -> None:
    training = Training(thin())
    training.steps(200, quicker, communication=0.08)
    training.steps(4 * WINDOW, quicker, communication=0.02)
    assert training.look.looks == 2


def test_small_changes_and_single_slow_steps_are_not_looked_at() -> None:
    training = Training(thin())
    training.steps(
        3000, lambda plan, step: quicker(plan, step) * (1 + 0.1 * (step % 3)) + (2.0 if step % 97 == 0 else 0)
    )
    assert len(training.auto.decisions) == 1
    assert training.look.looks == 1


def test_looks_become_rare_where_the_same_is_decided_again() -> None:
    training = Training(thin())
    training.steps(20_000, lambda plan, step: quicker(plan, step) * (1 + (step // 300) % 2))
    assert len(training.auto.decisions) < 12


class Pair:
    """Two ranks that exchange objects between threads."""

    def __init__(self) -> None:
        self.barrier, self.said = threading.Barrier(2, timeout=20), [None, None]

    def world(self, rank: int) -> Any:
        def gathered(mine: Any, what: str = "") -> list[Any]:
            self.said[rank] = mine
            self.barrier.wait()
            everyone = list(self.said)
            self.barrier.wait()
            return everyone

        return SimpleNamespace(rank=rank, ranks=2, gathered=gathered)


def test_ranks_that_measure_different_times_decide_alike() -> None:
    pair, found = Pair(), thin("bold")
    trainings = [Training(found, pair.world(rank)) for rank in range(2)]
    best = [str(found.trials[0].plan), str(found.trials[-1].plan)]  # each rank finds another one quicker

    def train(rank: int) -> None:
        trainings[rank].steps(
            300, lambda plan, _: PLAIN if plan == "none" else 0.1 if plan == best[rank] else 0.2 + rank / 9
        )

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert trainings[0].handle.used == trainings[1].handle.used != []
    assert trainings[0].auto.decisions == trainings[1].auto.decisions != []


def test_a_resumed_run_goes_on_without_looking_again() -> None:
    first = Training(thin())
    first.steps(100, quicker)
    second = Training(thin())
    second.handle.engine.plan = first.handle.engine.plan
    second.auto.check(first.auto.save())
    second.auto.load(first.auto.save())
    second.steps(100, quicker)
    assert second.auto.decisions == first.auto.decisions
    assert second.handle.used == []


def test_a_run_that_had_not_decided_looks_again() -> None:
    first = Training(thin())
    first.steps(FIRST + 3, quicker)
    assert first.plan != "none"
    second = Training(thin())
    second.handle.engine.plan = first.handle.engine.plan
    second.auto.load(first.auto.save())
    second.steps(FIRST + 1 + SKIPPED + TRIED, quicker)
    assert second.handle.used[0] == "none"
    assert len(second.auto.decisions) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 2, "decided": true, "decisions": []}',
        '{"version": 1, "decided": 1, "decisions": []}',
        '{"version": 1, "decided": true, "decisions": [{}]}',
        '{"version": 1, "decided": true, "decisions": {"0": 1}}',
    ],
)
def test_a_damaged_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(StateError, match="auto"):
        Training(thin()).auto.check(text)


def test_the_noise_of_a_timing_shrinks_with_its_steps() -> None:
    few, many = ([1.0 + 0.1 * (i % 5) for i in range(n)] for n in (10, 1000))
    assert Timing.of(many).noise < Timing.of(few).noise / 5
    assert Timing.of([1.0]).median == 1.0


def test_few_plain_steps_are_observed_where_compression_may_save_much() -> None:
    assert Budget(1.0, 0.9).steps == FEWEST
    assert Budget(1.0, 0.3).steps == MOST
    assert FEWEST < Budget(1.0, 0.55).steps < MOST
    assert Budget(1.0, 0.0).steps == MOST


@pytest.mark.parametrize("waited", [0.0, 0.2, 0.5, 0.8, 0.95])
def test_all_phases_together_stay_within_the_budget(waited: float) -> None:
    budget = Budget(1.0, waited)
    budget = replace(budget, observed=budget.steps)
    observing = budget.observed * (budget.plain - budget.hoped)
    assert 0 <= budget.link + budget.codecs <= budget.left
    assert observing + budget.left == pytest.approx(max(observing, SPENT * budget.hoped))
    assert SPENT < 20  # 2 % of 1,000 steps


def test_more_plain_steps_are_observed_where_they_cost_little() -> None:
    training = Training(thin())
    training.steps(MOST - 1, quicker, communication=0.1 * PLAIN)
    assert training.handle.used == []
    training.steps(1, quicker, communication=0.1 * PLAIN)
    assert training.handle.used != []


def test_no_further_plan_is_tried_when_the_budget_is_spent() -> None:
    found = thin("bold")
    assert len(found.trials) > 1
    training = Training(replace(found, spent=1000.0))
    training.steps(FIRST + SKIPPED + TRIED, quicker)
    (decision,) = training.auto.decisions
    assert list(decision.measured) == [found.trials[0].codec]


def test_a_single_plain_step_is_taken_to_be_noisy() -> None:
    once = Timing.of([1.0])
    assert not Timing(0.85, 0.0).is_less_than(once)
    assert Timing(0.75, 0.0).is_less_than(once)
    assert Timing.of([1.0, 1.2, 1.1]).noise == pytest.approx(0.43 * 0.2)
