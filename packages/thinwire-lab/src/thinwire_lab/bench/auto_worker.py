"""What `thinwire bench auto` runs on every host: search all plans, let `auto` decide, measure in turns."""

import sys
import time
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import nn

from thinwire.core.codec import Codec
from thinwire.planner.candidates import measuring_order
from thinwire.planner.choice import choose
from thinwire.planner.measure import measure as measure_profile
from thinwire_lab.bench.collectives import largest
from thinwire_lab.bench.ddp_worker import Runner, fresh_model, made_up_batches, slowest
from thinwire_lab.bench.launching import report, work
from thinwire_lab.compare.contenders import Attached
from thinwire_lab.recipes.place import Place

PROFILED = 6  # plain steps before the search
WARMUP = 3  # steps of a plan in the search that do not count: DDP sorts its buckets after the first
SEARCHED = 4  # steps of it that do
HOPELESS = 1.5  # times the step of the best plan so far: not searched any further
TURNS = 4
SPAN = 1.2  # seconds of a turn
FEWEST, MOST = 2, 12  # steps of a turn
MOST_STEPS = 80  # until auto must have decided
PLAIN, AGAIN, AUTO = "ddp", "ddp again", "auto"


def measure(job: dict[str, Any], place: Place) -> dict[str, Any]:
    model, batches = fresh_model(job), made_up_batches(job, place.rank)
    report(place, "profile")
    single, mixed = possible_plans(job["codecs"], model, batches)
    searched = search([*single, *mixed], model, batches, place)
    codec, best = min(single, key=searched.__getitem__), min(searched, key=searched.__getitem__)
    report(place, AUTO)
    auto = Runner(f"auto(candidates='{'; '.join(job['codecs'])}')", model)
    seconds, steps = decided(auto, batches)
    runners = {PLAIN: Runner("ddp", model), AGAIN: Runner("ddp", model), codec: Runner(codec, model)}
    runners |= ({} if best == codec else {best: Runner(best, model)}) | {AUTO: auto}
    for runner in runners.values():
        runner.settle(batches)
    take_turns(runners, batches, place)
    found = {name: slowest(runner.seconds) for name, runner in runners.items()}
    handle = handle_of(auto)
    decision = handle.decisions[-1]
    for runner in runners.values():
        runner.compressor.close()
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "plain": slowest([*runners[PLAIN].seconds, *runners[AGAIN].seconds]),
        "halves": [found[PLAIN], found[AGAIN]],
        "codec": codec,
        "codec_seconds": found[codec],
        "best": best,
        "best_seconds": found[best],
        "auto": found[AUTO],
        "plan": str(decision.plan),
        "reason": decision.reason,
        "cost": max(0.0, seconds - steps * found[AUTO]) / (1000 * found[AUTO]),
        "searched": searched,
    }


def possible_plans(codecs: Sequence[str], model: nn.Module, batches: Sequence[Any]) -> tuple[list[str], list[str]]:
    """Each codec's plan, and the plans by layer that the planner forms from them, equal on all ranks.

    `auto` measures as many codecs as there is time for, so that it may know any first part of the list.
    """
    plain = Runner("ddp", model)
    profile = measure_profile(plain.parallel, lambda: plain.train(batches, together=False), PROFILED, codecs)
    plain.compressor.close()
    known = measuring_order(tuple(str(Codec.parse(codec)) for codec in codecs))
    choices = [choose(profile, codecs=known[:count]) for count in range(1, len(known) + 1)]
    found: dict[str, bool] = {}  # the plan, and whether it is one codec's; the least predicted step first
    for choice in sorted((each for c in choices for each in c.admitted), key=lambda each: each.prediction.step):
        found.setdefault(str(choice.plan), choice.codec in known)
    shared = [found]
    dist.broadcast_object_list(shared, 0)
    plans = shared[0]
    return [plan for plan, single in plans.items() if single], [plan for plan, single in plans.items() if not single]


def search(plans: Sequence[str], model: nn.Module, batches: Sequence[Any], place: Place) -> dict[str, float]:
    """The median step with each plan; of one that is far behind, its last step of the warm-up."""
    searched: dict[str, float] = {}
    for number, plan in enumerate(plans):
        report(place, f"search, plan {number + 1} of {len(plans)}")
        runner = Runner(plan, model)
        pace = largest([runner.train(batches) for _ in range(WARMUP)])[-1]
        if pace <= HOPELESS * min(searched.values(), default=pace):
            runner.turn(batches, SEARCHED)
        searched[plan] = slowest(runner.seconds or [pace])
        runner.compressor.close()
    return searched


def decided(runner: Runner, batches: Sequence[Any]) -> tuple[float, int]:
    """Train without pauses until `auto` has decided; the seconds and the number of steps until then."""
    handle = handle_of(runner)
    dist.barrier()
    began, steps = time.perf_counter(), 0
    while not handle.decisions and steps < MOST_STEPS:
        runner.train(batches, together=False)
        steps += 1
    (seconds,) = largest([time.perf_counter() - began])
    return seconds, steps


def take_turns(runners: dict[str, Runner], batches: Sequence[Any], place: Place) -> None:
    """Every turn begins with another contender, so that none always follows the same one."""
    names = list(runners)
    for turn in range(TURNS):
        report(place, f"turn {turn + 1} of {TURNS}")
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            runner = runners[name]
            runner.turn(batches, max(FEWEST, min(MOST, int(SPAN / max(runner.pace, 1e-9)))))


def handle_of(runner: Runner) -> Any:
    assert isinstance(runner.compressor, Attached)
    return runner.compressor.handle


if __name__ == "__main__":
    work(sys.argv[1:], measure)
