"""DDP's lane and engine on the pretended device: every access ordered, memory of the right streams, no waiting."""

from collections.abc import Iterator
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from tests.contract.rows import gradients
from tests.device import sim
from thinwire.core import inputs
from thinwire.core.plan import Plan
from thinwire.ddp import lane as lanes
from thinwire.ddp.engine import Engine, NamedGradient
from thinwire.errors import CodecError

SHAPE = (24, 40)


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    sim.set_up()
    special = inputs._special
    monkeypatch.setattr(inputs, "_special", lambda t: None if isinstance(t, sim.SimTensor) else special(t))
    monkeypatch.setattr(torch.futures, "Future", sim.Future)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    sim.LOG.reset()
    yield
    dist.destroy_process_group()


def train(chain: str, count: int = 1, steps: int = 4) -> list[str]:
    """Steps of two layers, each in a bucket of its own, as DDP and an optimizer would; where the host waited last."""
    assert dist.group.WORLD is not None
    names = ("first", "second")
    engine = Engine.of(Plan.parse(chain), [(name, torch.empty(SHAPE)) for name in names])
    engine.meter.every = 0
    own = [lanes.Lane(dist.group.WORLD, torch.device("cpu"), None) for _ in range(count)]
    weights = {name: sim.on_device(torch.ones(SHAPE)) for name in names}
    buffers = {name: sim.on_device(torch.zeros(SHAPE[0] * SHAPE[1])) for name in names}
    waits: list[str] = []
    for step in range(steps):
        before, futures = len(sim.LOG.waits), []
        for at, name in enumerate(names):
            buffers[name].copy_(sim.on_device(gradients(1, SHAPE, step)[0]).view(-1))  # backward, on the default stream
            promise = lanes.Promise(buffers[name])
            piece = NamedGradient(name, buffers[name].view(SHAPE), weights[name])
            # lanes take turns, and not the same ones in every step: DDP rebuilds its buckets
            turn = own[(at + step) % count]
            turn.queue(partial(engine.average, [piece]), [promise])
            futures.append((name, promise.future))
        for name, future in futures:
            weights[name].sub_(future.wait().view(SHAPE), alpha=0.1)  # the optimizer, on the default stream
        waits = sim.LOG.waits[before:]
        engine.end_step(1, 0.0)
    for each in own:
        each.leave()
        assert each.broken is None
    return waits


@pytest.mark.parametrize("chain", ["qsgd", "sign", "powersgd(rank=2)", "topk(density=0.1)", "importance(density=0.1)"])
@pytest.mark.parametrize("count", [1, 2])
def test_lanes_are_ordered_and_use_their_own_memory(chain: str, count: int) -> None:
    waits = train(chain, count)
    assert sim.LOG.races == []
    assert sim.LOG.foreign == []
    if chain in ("qsgd", "sign", "powersgd(rank=2)"):
        assert waits == []


def test_a_lane_makes_its_stream_once() -> None:
    before = set(sim.LOG.clocks.current_sync_states)
    train("sign", 2, steps=5)
    assert len(set(sim.LOG.clocks.current_sync_states) - before) == 2


def test_a_lane_that_does_not_wait_for_its_buffers_is_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim.Stream, "wait_event", lambda self, event: None)
    train("sign")
    assert sim.LOG.races


def test_memory_that_the_allocator_was_not_told_of_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim.SimTensor, "record_stream", lambda self, stream: None)
    train("sign", 2)
    assert sim.LOG.foreign


def test_nccl_has_one_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    group, gpu, cpu = dist.group.WORLD, torch.device("cuda"), torch.device("cpu")
    assert group is not None
    assert [lanes.lane_count(None, group, where) for where in (cpu, gpu)] == [2, 1]
    assert lanes.lane_count(3, group, gpu) == 3
    monkeypatch.setattr(lanes, "devices_of", lambda backend, group: {"cuda"} if backend == "nccl" else set())
    assert lanes.lane_count(1, group, gpu) == 1
    with pytest.raises(CodecError, match="lanes must be 1 with NCCL"):
        lanes.lane_count(2, group, gpu)
