"""What a step will take with a plan: operations from a sketch, their times from a profile."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from thinwire.core.plan import Plan, PlanLike
from thinwire.ddp.bucket_hook import WORTH_ROUNDS
from thinwire.planner.profile import Figures, Layer, Link, Machine, Model, Profile
from thinwire.planner.sketch import sketch
from thinwire.planner.timeline import Elapsed, Job, Phase, elapsed
from thinwire.worlds.modelled import Operation


@dataclass(frozen=True)
class Prediction:
    """A step with one plan.

    Args:
        plan: The plan, as text.
        time: Where the seconds go.
        sent: Bytes that a rank sends.
        rounds: How often the ranks wait for each other.
        memory: Bytes that codecs keep between steps.
        error: Relative error of the whole gradient in one step.
        compressed: Share of the elements that are compressed.
    """

    plan: str
    time: Elapsed
    sent: int
    rounds: int
    memory: int
    error: float
    compressed: float

    @property
    def step(self) -> float:
        """Seconds of a step."""
        return self.time.step


def predict(profile: Profile, plan: PlanLike, ranks: int | None = None, straggler: float = 1.0) -> Prediction:
    """What a step takes with a plan.

    Args:
        profile: The link, the machine, the model and the figures of the plan's codecs.
        plan: What `thinwire.attach` takes.
        ranks: Predict for so many ranks; None takes those of the profile.
        straggler: How many times as fast as the others the slowest rank sends, receives and computes: 0.5 is half.
    """
    ranks = profile.ranks if ranks is None else ranks
    plan = Plan.parse(plan)
    codecs = codecs_of(plan, profile.model.layers)
    link = profile.link if straggler == 1.0 else profile.link.scaled(straggler)
    jobs, sent, rounds = [], 0, 0
    for bundle in bundles(profile.model, codecs):
        job, bytes_sent, waits = _job(profile, link, codecs, bundle, ranks)
        jobs.append(job)
        sent, rounds = sent + bytes_sent, rounds + waits
    slow = 1.0 if straggler >= 1.0 else 1.0 / straggler
    step, ready = profile.model.step * slow, [at * slow for at in profile.model.ready]
    jobs = [replace(job, ready=job.ready * slow) for job in jobs]
    time = elapsed(jobs, step, max(ready, default=step), profile.machine.parallel)
    found = [(layer, profile.figures(codec, layer.name)) for layer, codec in zip(profile.model.layers, codecs)]  # noqa: B905
    elements = max(profile.model.numel, 1)
    compressed = sum(layer.numel for layer, codec in zip(profile.model.layers, codecs, strict=True) if codec != "none")
    memory = sum(figures.memory for _, figures in found)
    return Prediction(str(plan), time, sent, rounds, memory, _error(found), compressed / elements)


def _error(found: Sequence[tuple[Layer, Figures]]) -> float:
    """Of the whole gradient, if its elements are alike in all layers."""
    elements = sum(layer.numel for layer, _ in found)
    squares = sum(figures.error**2 * layer.numel for layer, figures in found)
    return float((squares / elements) ** 0.5) if elements else 0.0


def codecs_of(plan: Plan, layers: Sequence[Layer]) -> list[str]:
    """The codec of each layer, as text."""
    import torch

    return [str(plan.decide(layer.name, layer.shape, getattr(torch, layer.dtype)).codec) for layer in layers]


def bundles(model: Model, codecs: Sequence[str]) -> list[list[int]]:
    """The layers, by number, that share their rounds: plain buckets go alone, others wait as in `ddp.bucket_hook`."""
    found: list[list[int]] = []
    waiting: list[int] = []
    for bucket in range(len(model.ready)):
        members = [i for i, layer in enumerate(model.layers) if layer.bucket == bucket]
        if all(codecs[i] == "none" for i in members):
            found.append(members)
        else:
            waiting += members
        size = sum(model.layers[i].nbytes for i in waiting)
        if waiting and (bucket == len(model.ready) - 1 or size >= WORTH_ROUNDS):
            found.append(waiting)
            waiting = []
    return found


def _job(
    profile: Profile, link: Link, codecs: Sequence[str], bundle: Sequence[int], ranks: int
) -> tuple[Job, int, int]:
    layers = [profile.model.layers[i] for i in bundle]
    mine = tuple(codecs[i] for i in bundle)
    found = [profile.figures(codec, layer.name) for codec, layer in zip(mine, layers, strict=True)]
    walk = sketch(mine, tuple(x.shape for x in layers), ranks, tuple(x.dtype for x in layers))
    ready = max(profile.model.ready[layer.bucket] for layer in layers)
    phases = _phases(walk.operations, found, link, profile.machine, ranks) if ranks > 1 else []
    return Job(ready, phases), walk.sent, walk.rounds


def _phases(
    operations: Sequence[Operation], found: Sequence[Figures], link: Link, machine: Machine, ranks: int
) -> list[Phase]:
    """Work before, the operations one after the other, work behind. What is begun goes along with what follows it."""
    before, inside = sum(f.before for f in found), sum(f.inside for f in found)
    phases = [Phase(work=before)]
    largest = max(range(len(operations)), key=lambda i: operations[i].sent, default=-1)
    along = Phase()
    for number, operation in enumerate(operations):
        latency, wire, cpu = link.cost(operation.kind, operation.sent, ranks, operation.rounds)
        work = cpu * machine.cpu_factor if machine.device == "cpu" else 0.0
        if operation.overlapped and number < len(operations) - 1:
            along = Phase(along.work + work, along.wire + wire, max(along.latency, latency))
            continue
        coding = inside if number == largest else 0.0
        parts = 2 * operation.frames * max(ranks - 1, 1)  # encoded one after the other, and decoded
        ends = coding / parts if operation.kind == "exchange" else 0.0
        middle = Phase(work + coding - 2 * ends + along.work, wire + along.wire, max(latency, along.latency))
        phases += [Phase(work=ends), middle, Phase(work=ends)]
        along = Phase()
    return [*phases, Phase(work=sum(f.after for f in found))]
