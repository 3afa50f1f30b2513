"""`elements_sent` counts what left in a step, also while a chain is not compressing yet or its density is changing."""

import math

import pytest
import torch

from thinwire import Slot, simulate
from thinwire.core.schedule import density_at

SHAPE, NUMEL = (32, 64), 2048


def counted(codec: str, steps: int, shape: tuple[int, ...] = SHAPE) -> list[float]:
    """The count of each step on rank 0."""
    drawn = torch.Generator().manual_seed(1)
    slots, counts = [Slot() for _ in range(3)], []
    for step in range(steps):
        simulate(codec, [torch.randn(shape, generator=drawn) for _ in slots], slots=slots, step=step)
        counts.append(slots[0].notes["elements_sent"])
    return counts


@pytest.mark.parametrize(
    ("codec", "expected"),
    [
        ("qsgd(bits=4)", [NUMEL]),
        ("integers(bits=8)", [NUMEL]),
        ("topk(density=0.125)", [256]),
        ("topk(density=0.125) | rangefloat(bits=8) | huffman", [256]),
        ("fft | topk(density=0.125)", [256]),
        ("randomk(density=0.125)", [256]),
        ("powersgd(rank=2)", [128]),
        ("powersgd(rank=2, warmup=2)", [NUMEL, NUMEL, 128]),
        ("pca(ratio=4, warmup=1, sample=2, reuse=2)", [NUMEL] * 3 + [512] * 2 + [NUMEL] * 2),
        ("pca(ratio=4, warmup=0, sample=2, reuse=2) | topk(density=0.5)", [NUMEL] * 2 + [256]),
        ("pca(ratio=4, warmup=0, sample=2, reuse=2, travel='topk(density=0.5)')", [1024] * 2 + [512]),
        ("delay(steps=2) | topk(density=0.125)", [NUMEL, NUMEL, 256]),
        ("delay(steps=2) | sharedtopk(density=0.125)", [NUMEL, NUMEL, 256]),
        ("momentum(beta=0.9) | powersgd(rank=2, warmup=1)", [NUMEL, 128]),
    ],
)
def test_counts_follow_the_phases_of_a_chain(codec: str, expected: list[int]) -> None:
    assert counted(codec, len(expected)) == expected


@pytest.mark.parametrize("stage", ["topk", "sharedtopk"])
def test_counts_follow_the_density(stage: str) -> None:
    expected = [math.ceil(density_at(0.01, step, warmup=3) * NUMEL) for step in range(5)]
    assert expected[0] > 10 * expected[-1]
    assert counted(f"{stage}(density=0.01, warmup=3)", 5) == expected


@pytest.mark.parametrize(("codec", "shape"), [("powersgd(rank=4)", (4, 512)), ("gradiveq", (2048,))])
def test_tensors_that_a_stage_declines_count_in_full(codec: str, shape: tuple[int, ...]) -> None:
    assert counted(codec, 2, shape) == [NUMEL, NUMEL]


def test_a_step_that_is_not_finite_is_counted_too() -> None:
    slots = [Slot(), Slot()]
    codec = "delay(steps=1) | topk(density=0.125)"
    simulate(codec, [torch.ones(SHAPE)] * 2, slots=slots, step=1)
    simulate(codec, [torch.full(SHAPE, torch.inf)] * 2, slots=slots, step=0)
    assert slots[0].notes["elements_sent"] == NUMEL
