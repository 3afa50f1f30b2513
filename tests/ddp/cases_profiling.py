"""Spans in the profile of a user's own profiler, and none without one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

import thinwire
from tests.ddp.cases import case, ddp, net, train

CHAINS = {  # what is encoded and decoded, by the route that the chain takes
    "qsgd(bits=4)": "qsgd(bits=4)",  # messages of shards
    "qsgd(bits=4) | huffman": "qsgd(bits=4), huffman",  # of unequal length
    "topk(density=0.1)": "topk(density=0.1)",
    "pca(ratio=4, warmup=1, sample=2, reuse=100)": "pca(ratio=4, warmup=1, sample=2, reuse=100)",  # parts
    "fft(chunk=64) | topk(density=0.1)": "fft(chunk=64)",  # blocks or all at once
}


@contextmanager
def profiled(all_threads: bool) -> Iterator[set[str]]:
    """The names of thinwire's spans that torch.profiler recorded, once the block has ended."""
    config = torch._C._profiler._ExperimentalConfig(profile_all_threads=all_threads)
    names: set[str] = set()
    with profile(activities=[ProfilerActivity.CPU], experimental_config=config) as profiler:
        yield names
    names |= {event.name for event in profiler.events() if event.name.startswith("thinwire:")}


@case(2)
def a_profiler_of_all_threads_shows_what_lanes_do(rank: int, ranks: int, folder: Path) -> None:
    for chain, stages in CHAINS.items():
        for lanes in (1, 2):
            model = ddp(net(), bucket_cap_mb=0.01)
            handle = thinwire.attach(model, chain, lanes=lanes)
            train(model, rank, range(4))
            with profiled(all_threads=True) as names:
                train(model, rank, range(4, 5))
            assert {f"thinwire: encode {stages}", f"thinwire: decode {stages}", "thinwire: wait"} <= names
            assert any(name.startswith("thinwire: exchange ") for name in names)
            averaged = [name for name in names if name.startswith("thinwire: average ")]
            assert any("first.weight" in name for name in averaged)
            assert any("second.weight" in name for name in averaged)
            handle.close()


@case(2)
def a_default_profiler_shows_the_wait(rank: int, ranks: int, folder: Path) -> None:
    model = ddp(net(), bucket_cap_mb=0.01)
    handle = thinwire.attach(model, "qsgd")
    train(model, rank, range(2))
    with profiled(all_threads=False) as names:
        train(model, rank, range(2, 3))
    assert "thinwire: wait" in names
    handle.close()


@case(2)
def a_loop_without_lanes_shows_all_to_a_default_profiler(rank: int, ranks: int, folder: Path) -> None:
    for chain, stages in CHAINS.items():
        model, state = net(), thinwire.GradientState()
        with profiled(all_threads=False) as names:
            for step in range(4):
                model.zero_grad()
                model(torch.full((8, 32), 0.1 * step + rank)).sum().backward()
                thinwire.average_gradients(model, chain, state)
        assert {f"thinwire: encode {stages}", f"thinwire: decode {stages}"} <= names
        assert any(name.startswith("thinwire: exchange ") for name in names)
        assert "thinwire: average first.weight, first.bias, second.weight, second.bias, ..." in names


@case(2)
def no_span_is_entered_without_a_profiler(rank: int, ranks: int, folder: Path) -> None:
    entered: list[str] = []
    enter = record_function.__enter__

    def noted(self: record_function) -> record_function:
        entered.append(self.name)
        enter(self)
        return self

    with mock.patch.object(record_function, "__enter__", noted):
        for chain in CHAINS:
            model = ddp(net(), bucket_cap_mb=0.01)
            handle = thinwire.attach(model, chain)
            train(model, rank, range(4))
            handle.close()
    assert "DistributedDataParallel.forward" in entered  # torch's own
    assert not [name for name in entered if name.startswith("thinwire:")]
