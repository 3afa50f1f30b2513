"""Exchanges of fragments: sent at one step on a thread of their own, applied at the same or a later one."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from thinwire.core.ops import AllReduce, Broadcast
from thinwire.ddp.consistency import Fingerprint
from thinwire.ddp.engine import Engine, NamedGradient
from thinwire.ddp.lane import Lane, Promise
from thinwire.ddp.meter import Entry, Step, Tally
from thinwire.ddp.metrics import StepMetrics
from thinwire.errors import WorldError
from thinwire.kernels.shares import divided
from thinwire.outer.metrics import RoundMetrics
from thinwire.outer.settings import OuterSettings
from thinwire.outer.weights import Anchors, ModelBuffers, finite
from thinwire.worlds.distributed import Distributed


@dataclass
class Flight:
    """One exchange under way, or its result: the mean differences of a fragment."""

    fragment: int
    due: int  # the step at which it is applied
    means: list[Tensor]
    promises: Sequence[Promise] = ()
    buffers: dict[int, Tensor] = field(default_factory=dict)
    cost: StepMetrics | None = None
    exposed: float = 0.0
    drift: float = 0.0

    def wait(self) -> None:
        for promise in self.promises:
            promise.future.wait()


class Exchange:
    """Counts inner steps, sends fragments when it is their turn, and applies what the ranks agreed on."""

    def __init__(
        self,
        engine: Engine,
        lane: Lane,
        settings: OuterSettings,
        fragments: Sequence[Sequence[int]],
        anchors: Anchors,
        buffers: ModelBuffers,
        check: int,
    ) -> None:
        self.engine, self.lane, self.settings, self.check = engine, lane, settings, check
        self.fragments, self.anchors, self.buffers = fragments, anchors, buffers
        self.step = 0
        self.flights: list[Flight] = []
        self._landed = 0
        self._bytes = self._steps = 0  # of this process: for the mean over steps
        self._fingerprint = Fingerprint()

    def on_step(self, world: Distributed) -> list[RoundMetrics]:
        """One more inner step has ended; returns the metrics of the rounds that ended with it."""
        self.step += 1
        self._steps += 1
        done = self._land(world, self.step)  # before anything is sent: a fragment is in flight once at most
        for fragment in range(len(self.fragments)):
            if self.settings.sends(self.step, fragment):
                self._send(fragment, self.step + self.settings.overlap)
        return done + self._land(world, self.step)

    def synchronize(self, world: Distributed) -> list[RoundMetrics]:
        """Apply what is under way, then exchange everything now."""
        done = self._land(world, None)
        for fragment in range(len(self.fragments)):
            self._send(fragment, self.step)
        return done + self._land(world, None, mix=1.0)

    def wait(self) -> None:
        """Wait for the results of all exchanges under way; nothing is applied."""
        for flight in self.flights:
            flight.wait()
        self._raise_failure()

    def _send(self, fragment: int, due: int) -> Flight:
        began = time.perf_counter()
        which = self.fragments[fragment]
        # buffers are sent once a round, as they are now: forward passes change them while they are sent
        last = fragment == len(self.fragments) - 1
        buffers = {at: b.clone() for at, b in enumerate(self.buffers.values)} if last else {}
        changed = self.buffers.changed() if last else []
        means = self.anchors.differences(which)
        pieces = [
            NamedGradient(self.anchors.names[at], mean, self.anchors.values[at])
            for at, mean in zip(which, means, strict=True)
        ]
        flight = Flight(fragment, due, means, [Promise(mean, lenient=True) for mean in means], buffers)
        self.lane.queue(lambda world: self._average(flight, pieces, changed, world), flight.promises)
        self.flights.append(flight)
        flight.exposed = time.perf_counter() - began
        return flight

    def _average(self, flight: Flight, pieces: list[NamedGradient], changed: list[int], world: Distributed) -> None:
        try:
            own = _energy(flight.means)
            self.engine.average(pieces, world)
            flight.drift = self._drift(own, flight.means, world)
            if changed:
                self._exchange_buffers(flight, changed, world)
        except Exception as reason:
            where = f"[rank {world.rank}, exchange {self.engine.step} of fragment {flight.fragment}]"
            raise WorldError(f"{reason} {where}") from reason
        flight.cost = self.engine.end_step(world.ranks, 0.0)

    def _drift(self, own: float, means: Sequence[Tensor], world: Distributed) -> float:
        """The share of the ranks' differences that is not common to them; `own`: the energy of this rank's."""
        before = world.counters()
        total = torch.tensor([own], dtype=torch.float64, device=means[0].device)
        each = float(world.perform(AllReduce([total]))[0]) / world.ranks
        self.engine.meter.add(before, world.counters(), [])
        return max(0.0, 1.0 - _energy(means) / each) ** 0.5 if each > 0 else 0.0

    def _exchange_buffers(self, flight: Flight, changed: list[int], world: Distributed) -> None:
        """Agree which buffers changed on any rank, and send those."""
        before = world.counters()
        device = self.buffers.known[0].device
        flags = world.perform(AllReduce([torch.tensor(changed, dtype=torch.int32, device=device)], "max"))[0].tolist()
        flight.buffers = {at: value for at, value in flight.buffers.items() if flags[at]}
        for at, value in flight.buffers.items():
            if self.buffers.how == "broadcast":
                reply = world.perform(Broadcast([value], 0))[0]
            else:
                reply = world.perform(AllReduce([divided(value, world.ranks, out=value)]))[0]
            flight.buffers[at] = reply.clone()
        after = world.counters()
        numbers = sum(value.numel() for value in flight.buffers.values())
        sent, received = after.sent - before.sent, after.received - before.received
        tally = Tally(len(flight.buffers), numbers, numbers, sent=sent, received=received)
        self.engine.meter.add(before, after, [Entry("buffers", tally)])

    def _land(self, world: Distributed, step: int | None, mix: float | None = None) -> list[RoundMetrics]:
        """Apply the exchanges that are due at this step; None: all."""
        done = []
        while self.flights and (step is None or self.flights[0].due <= step):
            flight = self.flights[0]
            began = time.perf_counter()
            flight.wait()
            self._raise_failure()
            if not finite(flight.means):
                mine = all(finite(self.anchors.differences(which)) for which in self.fragments)
                raise WorldError(
                    f"rank {world.rank}: the mean difference at step {self.step} has numbers that are not finite, and"
                    f" the weights of this rank {'are finite, those of another are not' if mine else 'are not finite'};"
                    " nothing was applied; go on from a checkpoint with a lower learning rate."
                )
            del self.flights[0]
            which = self.fragments[flight.fragment]
            mixed = self.settings.mix if mix is None else mix
            self.anchors.apply(which, flight.means, mixed)
            self.buffers.apply(flight.buffers, mixed)
            flight.exposed += time.perf_counter() - began
            self._compare(world, which)
            done.append(self._metrics(flight, world.ranks))
        return done

    def _compare(self, world: Distributed, which: Sequence[int]) -> None:
        self._landed += 1
        if self.check and self._landed % self.check == 0:
            for at in which:
                self._fingerprint.add(self.anchors.values[at])
            self._fingerprint.compare(world, self.step, "weights after an outer step")

    def _metrics(self, flight: Flight, ranks: int) -> RoundMetrics:
        cost = flight.cost or Step().metrics(self.step, ranks, 0.0)  # a resumed run has not paid for it
        self._bytes += cost.bytes_sent
        values: dict[str, Any] = {**vars(cost), "step": self.step, "exposed_seconds": flight.exposed}
        per_step = self._bytes / max(1, self._steps)
        where: dict[str, Any] = {"round": cost.step, "fragment": flight.fragment}
        return RoundMetrics(**values, **where, bytes_per_step=per_step, drift=flight.drift)

    def _raise_failure(self) -> None:
        if self.lane.broken is not None:
            raise WorldError(str(self.lane.broken)) from self.lane.broken


def _energy(tensors: Sequence[Tensor]) -> float:
    """The sum of the squares of all numbers."""
    return float(sum(torch.linalg.vector_norm(t).double().square() for t in tensors))
