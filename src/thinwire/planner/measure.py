"""A profile of what trains now: its link, its steps, and codecs on its gradients."""

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from thinwire.errors import CodecError, WorldError
from thinwire.planner.candidates import checked_candidates
from thinwire.planner.figures import measure_codecs
from thinwire.planner.link import SECONDS, measure_link
from thinwire.planner.observe import Observed, Observer, agreed_model, check_plain
from thinwire.planner.predict import predict
from thinwire.planner.profile import Link, LinkPoint, Machine, Model, Profile
from thinwire.worlds.distributed import Distributed

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_TURNS = 4
_LEAST_WIRE, _MOST_WIRE = 1e-11, 1e-5  # seconds for a byte: 800 Gbit/s and 0.8 Mbit/s
_LONG = 1 << 26  # bytes of an operation that is long
_HALVINGS = 12


def measure(
    model: nn.Module,
    step: Callable[[], Any],
    steps: int = 10,
    candidates: Sequence[str] | None = None,
    seconds: float = SECONDS,
) -> Profile:
    """Train for some steps, look on, and measure the link and the codecs. All ranks call it with equal arguments.

    Args:
        model: The DDP model, without a handle of thinwire that compresses.
        step: One step of training: forward, backward and the optimizer. It is called `steps` + 1 times.
        steps: Steps to look at, at least 3.
        candidates: Codecs; None takes `candidates.CANDIDATES`.
        seconds: What the measurement of the link may take.
    """
    if steps < 3:
        raise CodecError(f"steps must be at least 3, because DDP sorts its buckets after the first; got {steps}.")
    if not callable(step):
        raise CodecError(f"step must be a function that trains for one step; got {type(step).__name__}.")
    observer = Observer(model)
    try:
        while observer.steps < steps:
            before = observer.calls
            step()
            if observer.calls == before:
                raise WorldError("the step function did not call the DDP model; pass the model that it trains.")
        check_plain(observer.ddp)
        return profile_of(observer, Distributed(observer.ddp.process_group), candidates, seconds)
    finally:
        observer.close()


def profile_of(
    observer: Observer,
    world: Distributed,
    candidates: Sequence[str] | None = None,
    seconds: float = SECONDS,
    link: Link | None = None,
) -> Profile:
    """The profile of a training that has been observed, equal on all ranks; all of them call it between two steps.

    Args:
        observer: It must have seen a step of training.
        world: The world of the model's process group.
        candidates: Codecs; None takes `candidates.CANDIDATES`.
        seconds: What the measurement of the link may take.
        link: A link that is known already; None measures it.
    """
    chosen = checked_candidates(candidates)
    mine: tuple[Observed, str] = (observer.observed(), host_mark())
    everyone = world.gathered(mine, "the measurement of the model") if world.ranks > 1 else [mine]
    model = agreed_model([each for each, _ in everyone])
    together = [mark for _, mark in everyone].count(everyone[0][1])
    device = next(p.device.type for p in observer.ddp.module.parameters())
    machine = Machine(core_count(), together, torch.get_num_threads(), device)
    if world.ranks > 1:
        (machine,) = set(world.gathered(machine, "the measurement of the machine")[:1])
    found = measure_link(world, seconds) if link is None else link
    codecs = measure_codecs(world, chosen, model.layers, observer.samples)
    return unloaded(Profile(found, machine, model, codecs, world.ranks, observer.steps))


def unloaded(profile: Profile) -> Profile:
    """The same with the times of backward that it would have without communication.

    While DDP averages, the processor also works for the network, and backward takes longer: here by so much that the
    predicted plain step has the measured times.
    """
    measured = profile.model
    last = max(measured.ready, default=0.0)
    if last <= 0.0 or profile.ranks < 2:
        return profile
    factor = 1.0
    for _ in range(_TURNS):
        loaded = predict(_quicker(profile, measured, factor), "none").time.backward
        factor = min(1.0, factor * last / loaded)
    return _quicker(profile, measured, factor)


def fitted(profile: Profile, plain: float) -> Profile:
    """The same on a link of the bandwidth with which the predicted plain step has the measured time.

    The all-reduces of the training are longer than those that there is time for between two steps: latencies and
    processor time are those of the measured link, and the wire is that of the training.
    """
    quick, slow = _LEAST_WIRE, _MOST_WIRE
    for _ in range(_HALVINGS):
        middle = (quick * slow) ** 0.5
        found = replace(profile, link=_with_wire(profile.link, middle))
        quick, slow = (quick, middle) if predict(found, "none").step > plain else (middle, slow)
    return found


def _with_wire(link: Link, wire: float) -> Link:
    """The same latencies, and so many seconds of the wire for each byte.

    A long operation takes no more processor time than it lasts: what short ones took says little of it.
    """
    found = {}
    for kind, those in link.points.items():
        first, longest = those[0], max(_LONG, 2 * those[-1].sent)
        points = [replace(p, seconds=first.seconds + wire * (p.sent - first.sent)) for p in those]
        seconds = first.seconds + wire * (longest - first.sent)
        points.append(LinkPoint(longest, seconds, min(seconds, link.cost(kind, longest, link.ranks)[2])))
        found[kind] = tuple(points)
    return replace(link, points=found)


def _quicker(profile: Profile, measured: Model, factor: float) -> Profile:
    ready = tuple(at * factor for at in measured.ready)
    saved = (1.0 - factor) * max(measured.ready)
    return replace(profile, model=Model(measured.layers, ready, measured.step - saved))


def core_count() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def host_mark() -> str:
    """Equal for the processes of one machine, also if containers or network namespaces separate them."""
    return _BOOT.read_text().strip() if _BOOT.exists() else socket.gethostname()
