"""What an observer notes of a training: times, buckets and samples of gradients."""

import contextlib
import math
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

from thinwire.planner import observe
from thinwire.planner.candidates import BOLD
from thinwire.planner.figures import SAMPLE, codec_figures, sample_of
from thinwire.planner.observe import Observed, Observer, StepTimes, agreed_model
from thinwire.planner.profile import Layer, bucketed

CODECS = ("bf16", "integers(bits=8)", "qsgd(bits=4)", "powersgd(rank=1)", "sign")


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def trained(model: nn.Module, steps: int, inputs: torch.Tensor, scales: dict[int, float] | None = None) -> Observer:
    """An observer of some steps; `scales` multiplies the loss in some of them."""
    observer = Observer(model)
    for step in range(steps):
        model.zero_grad()
        (model(inputs).float().square().sum() * (scales or {}).get(step, 1.0)).backward()
    observer.close()
    return observer


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize("codec", CODECS)
def test_nothing_is_known_of_a_gradient_that_overflowed(codec: str, bad: float) -> None:
    sample = torch.randn(64, 48)
    sample[3, 4] = bad
    figures = codec_figures(codec, (Layer("a", (64, 48), 0),), {"a": sample}, 4)["a"]
    assert figures.error == math.inf
    assert not BOLD.admits(codec, figures)


@pytest.mark.parametrize("codec", CODECS)
def test_a_gradient_of_zeros_does_not_make_a_codec_look_lossless(codec: str) -> None:
    layer = Layer("a", (64, 48), 0)
    zeros, unknown = (codec_figures(codec, (layer,), given, 4)["a"] for given in ({"a": torch.zeros(64, 48)}, {}))
    assert zeros.error == unknown.error > 0


@pytest.mark.parametrize("scale", [math.inf, 0.0])
def test_samples_that_tell_nothing_are_taken_again(scale: float) -> None:
    torch.manual_seed(0)
    model, inputs = DistributedDataParallel(nn.Linear(8, 8)), torch.randn(4, 8)
    observer = trained(model, 6, inputs, {1: scale, 2: scale, 3: scale})
    assert all(bool(sample.isfinite().all() and sample.any()) for sample in observer.samples.values())
    assert set(observer.samples) == {"weight", "bias"}
    torch.testing.assert_close(observer.samples["weight"], model.module.weight.grad)


def test_a_sample_has_rows_from_all_of_a_gradient() -> None:
    """The last words of an embedding are as much a part of it as the first."""
    rows = 4 * SAMPLE // 64
    gradient = torch.arange(rows).float().unsqueeze(1).expand(rows, 64)
    sample = sample_of(gradient)
    assert sample.shape == (SAMPLE // 64, 64)
    assert sample[0, 0] == 0
    assert sample[-1, 0] >= rows - 4
    assert float(sample.mean()) == pytest.approx(float(gradient.mean()), rel=0.01)


def test_micro_batches_without_averaging_are_a_part_of_the_step() -> None:
    """The times of their gradients do not count, and the step begins with the first of them."""
    model = DistributedDataParallel(nn.Linear(8, 8))
    pause, wait = 0.01, 0.1

    def slow(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        time.sleep(wait)  # of a network
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    model.register_comm_hook(None, slow)
    observer = Observer(model)
    for _ in range(5):
        for micro in range(4):
            with contextlib.nullcontext() if micro == 3 else model.no_sync():
                loss = model(torch.randn(4, 8)).sum()
                time.sleep(pause)
                loss.backward()
    found = agreed_model([observer.observed()])
    observer.close()
    assert observer.steps == 4
    assert max(found.ready) >= 4 * pause  # all four micro-batches come before it
    whole = [whole for _, _, whole in observer._found]
    assert found.step <= max(whole) - wait  # the wait for the network does not count
    assert min(whole) >= 4 * pause + wait


def test_a_wait_for_another_rank_is_no_wait_for_the_network() -> None:
    """Two ranks share a core: in each step another one has its gradients last, and the network takes 5 s."""
    layers = (Layer("a", (4,), 0), Layer("b", (4,), 1))
    early, late = StepTimes((1.0, 2.0), 9.0, 10.0), StepTimes((3.0, 4.0), 9.0, 10.0)
    model = agreed_model([Observed(layers, (early, late, early)), Observed(layers, (late, early, late))])
    assert (model.ready, model.step) == ((3.0, 4.0), 5.0)
    # a rank that begins its step later has a shorter step, and its averages at the same moment
    behind = StepTimes((1.0, 2.0), 7.0, 10.0)
    model = agreed_model([Observed(layers, (early,)), Observed(layers, (behind,))])
    assert (model.ready, model.step) == ((3.0, 4.0), 5.0)


def test_a_sparse_gradient_does_not_disturb_the_training() -> None:
    model = DistributedDataParallel(nn.Embedding(20_000, 16, sparse=True))
    observer = Observer(model)
    for _ in range(4):
        model.zero_grad()
        model(torch.tensor([1, 2])).sum().backward()
    assert observer.samples == {}
    observer.close()


def test_a_sample_that_fails_does_not_disturb_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(gradient: torch.Tensor, most: int) -> torch.Tensor:
        raise MemoryError("no memory for a sample")

    monkeypatch.setattr(observe, "sample_of", failing)
    observer = trained(DistributedDataParallel(nn.Linear(8, 8)), 4, torch.randn(4, 8))
    assert "MemoryError at the gradient of" in observer.failure


@pytest.mark.parametrize("megabytes", [None, 1, 2, 25])
def test_buckets_are_those_of_ddp(megabytes: int | None) -> None:
    """Only the default has a shorter first bucket."""
    net = nn.Sequential(*(nn.Linear(400, 400) for _ in range(8)))
    model = DistributedDataParallel(net, bucket_cap_mb=megabytes)
    layers = trained(model, 3, torch.randn(2, 400)).layers()
    sizes = [sum(x.nbytes for x in layers if x.bucket == b) for b in range(1 + layers[-1].bucket)]
    logged = model._get_ddp_logging_data()
    assert sizes == [int(size) for size in str(logged["rebuilt_bucket_sizes"]).split(",")]


def test_each_type_of_numbers_has_its_own_buckets() -> None:
    types = ("float32", "bfloat16", "float32", "bfloat16", "float32")
    layers = [Layer(f"{at}", (100,), 0, dtype) for at, dtype in enumerate(types)]
    placed = bucketed(layers, [400, 800])
    assert [(layer.name, layer.bucket) for layer in placed] == [("0", 0), ("1", 1), ("3", 1), ("2", 2), ("4", 2)]
