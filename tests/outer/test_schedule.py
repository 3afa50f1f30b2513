"""Laws of the schedule of fragments, with one rank and a lane that is late: everything that is sent is applied once."""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from thinwire.ddp.lane import Promise
from thinwire.ddp.meter import Step
from thinwire.outer.exchange import Exchange
from thinwire.outer.fragments import split
from thinwire.outer.settings import OuterSettings
from thinwire.outer.weights import Anchors, ModelBuffers
from thinwire.worlds.distributed import Counters


class OneRank:
    """A world of one rank."""

    rank, ranks = 0, 1

    def perform(self, op: Any) -> list[Tensor]:
        return list(op.items)

    def counters(self) -> Counters:
        return Counters()


class LateLane:
    """Performs jobs in order, on a thread that takes its time."""

    broken = None

    def __init__(self) -> None:
        self.before: threading.Thread | None = None

    def queue(self, job: Any, promises: Sequence[Promise]) -> None:
        def work(before: threading.Thread | None = self.before) -> None:
            if before is not None:
                before.join()
            time.sleep(0.001)
            job(OneRank())
            for promise in promises:
                promise.keep()

        self.before = threading.Thread(target=work)
        self.before.start()


class Recorder:
    """In place of the engine: the mean of one rank is what it sent."""

    def __init__(self) -> None:
        self.step = 0
        self.sent: list[dict[str, Tensor]] = []
        self.meter = self

    def average(self, pieces: Any, world: Any) -> None:
        self.sent.append({piece.name: piece.gradient.clone() for piece in pieces})

    def add(self, before: Any, after: Any, entries: Any) -> None:
        assert not entries

    def end_step(self, ranks: int, exposed: float) -> Any:
        self.step += 1
        return Step().metrics(self.step - 1, ranks, exposed)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_what_is_sent_moves_the_anchor_once(data: st.DataObject) -> None:
    every = data.draw(st.integers(1, 8))
    parts = data.draw(st.integers(1, min(every, 4)))
    overlap = data.draw(st.integers(0, every - 1))
    mix = data.draw(st.sampled_from([1.0, 0.5]))
    rounds = data.draw(st.integers(0, 3))
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(3, 3, dtype=torch.float64) for _ in range(4)])
    named: list[tuple[str, Tensor]] = list(model.named_parameters())
    anchors, recorder = Anchors(named, "sgd(lr=1)"), Recorder()
    start = {name: value.clone() for name, value in zip(anchors.names, anchors.values, strict=True)}
    given_settings = OuterSettings(every=every, fragments=parts, overlap=overlap, mix=mix, outer="sgd(lr=1)")
    fragments = split([(name, p.nbytes) for name, p in named], parts)
    engine, lane = recorder, LateLane()
    buffers = ModelBuffers(model, "average")
    exchange = Exchange(engine, lane, given_settings, fragments, anchors, buffers, check=0)  # type: ignore[arg-type]
    world: Any = OneRank()
    applied = []
    for _ in range(rounds * every):
        with torch.no_grad():
            for _, parameter in named:
                parameter.add_(torch.randn_like(parameter))
        applied += exchange.on_step(world)
        assert len({flight.fragment for flight in exchange.flights}) == len(exchange.flights)
    applied += exchange.synchronize(world)
    assert Counter(metrics.fragment for metrics in applied) == dict.fromkeys(range(parts), rounds + 1)
    for (name, parameter), value in zip(named, anchors.values, strict=True):
        total = sum(sent[name] for sent in recorder.sent if name in sent)
        torch.testing.assert_close(start[name] - value, total)
        torch.testing.assert_close(parameter.detach(), value, rtol=0, atol=0)
