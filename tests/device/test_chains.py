"""Every chain on the pretended device: the bits of the CPU, and how often the host waits for the device."""

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from tests.contract.rows import ROWS, gradients
from tests.device import sim
from thinwire.core import inputs
from thinwire.core.average import average
from thinwire.core.codec import Codec
from thinwire.core.route import StepInfo
from thinwire.core.slot import Slot
from thinwire.worlds.simulated import run

SHAPE = (24, 40)
RANKS = 3
# How often the hosts of three ranks wait in the second step of one tensor; 0 for chains that are not here.
WAITS = {
    # a trial, or the number of coefficients, is decided by the host
    "fft(chunk=64, auto=0.1) | topk(density=0.1) | rangefloat(bits=8)": 24,
    "dct(chunk=4, auto=0.2, dims=2) | topk(density=0.2)": 24,
    "pca(energy=0.9, warmup=0, sample=6, reuse=20, order=auto)": 3,
    "topk(density=0.1) | float(type=bf16)": 48,
    "ef21 | topk(density=0.1)": 51,
    "ef21 | topk(density=0.1, chunk=64) | codebook(bits=2)": 108,
    "ef21 | fft(chunk=64) | sharedtopk(density=0.2)": 13,
    "integers(bits=8)": 6,
    "integers(bits=5)": 6,
    "integers(bits=16)": 6,
    "rangefloat(bits=8)": 66,
    "rangefloat(bits=4, mantissa=1)": 24,
    "rangefloat(bits=10, mantissa=4, rounding=stochastic)": 24,
    "rangefloat(bits=16, minimum=-4, maximum=4)": 114,
    "topk(density=1/16)": 48,
    "topk(density=1)": 48,
    "threshold(value=0.5)": 78,
    "threshold(value=0.25) | fp16": 78,
    "qsgd(bits=4) | huffman": 24,
    "qsgd(bits=2) | elias": 24,
    "nuqsgd(bits=4) | elias": 24,
    "fp16 | huffman": 24,
    "ternary | huffman": 24,
    "sign | huffman": 30,
    "topk(density=0.1) | qsgd(bits=4)": 48,
    "topk(density=0.1) | rangefloat(bits=8) | huffman": 144,
    "topk(density=0.05) | bf16": 48,
    "rangefloat(bits=12) | huffman": 123,
    "topk(density=1/16, warmup=3)": 78,
    "topk(density=1/16, chunk=64)": 60,
    "topk(density=1/4, chunk=50, warmup=3)": 81,
    "feedback(decay=0.95) | topk(density=1/64, chunk=4096) | codebook(bits=2)": 93,
    "feedback(decay=0.9) | dct(chunk=32) | topk(density=0.1)": 48,
    "fft(chunk=64) | topk(density=1/8, chunk=16) | codebook(bits=4)": 108,
    "codebook(bits=2)": 45,
    "codebook(bits=8, sigmas=12)": 45,
    "codebook(bits=3) | huffman": 75,
    "mx(bits=4)": 24,
    "mx(bits=6)": 24,
    "mx(bits=8)": 24,
    "mx(bits=4) | huffman": 54,
    "topk(density=0.1, chunk=64) | mx(bits=4)": 84,
    "fft(chunk=128) | topk(density=0.15) | rangefloat(bits=8)": 117,
    "dct(chunk=32) | topk(density=0.1) | fp16": 48,
    "feedback(decay=0.999) | dct(chunk=8, dims=2) | topk(density=1/8, chunk=64)": 60,
    "sharedtopk(density=0.1)": 9,
    "fft(chunk=64) | sharedtopk(density=0.2) | qsgd(bits=4)": 10,
    "alq(bits=3, bucket=64, start=1)": 39,
    "importance(density=0.1)": 27,
    "importance(density=0.1, mask_nodes=1) | qsgd(bits=4)": 12,
    "momentum(beta=0.9) | topk(density=0.1)": 51,
    "powersgd(rank=2, alternate=true)": 3,
    "powersgd(rank=1, alternate=true) | qsgd(bits=4)": 3,
    "feedback(keep=off) | ballot | vote": 12,
    "pca(ratio=4, warmup=1, sample=6, reuse=20)": 4,
    "pca(ratio=4, warmup=0, sample=6, reuse=9, travel='qsgd(bits=4)') | qsgd(bits=4)": 3,
    "feedback(keep=off) | topk(density=0.1)": 39,
}
BY_PRODUCTS = ("powersgd", "pca")  # torch's matrix products add in other orders than the loops of the CPU


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    sim.set_up()
    special = inputs._special  # the pretended device's tensors have a class of their own, as a device's have not
    monkeypatch.setattr(inputs, "_special", lambda t: None if isinstance(t, sim.SimTensor) else special(t))
    sim.LOG.reset()
    yield
    assert not sim.LOG.races
    assert not sim.LOG.foreign


def take_step(chain: str, given: Sequence[Tensor], slots: Sequence[Slot], at: int, weights: Tensor) -> list[Tensor]:
    codec, infos = Codec.parse(chain), [StepInfo(rank, len(given), step=at) for rank in range(len(given))]
    return run([average(codec, g, s, i, weights) for g, s, i in zip(given, slots, infos, strict=True)])[0]


def new_slots() -> list[Slot]:
    return [Slot() for _ in range(RANKS)]


WEIGHTS = torch.linspace(-1, 1, SHAPE[0] * SHAPE[1]).view(SHAPE)


def marked(chain: str) -> object:
    """Long chains of stages that are tested by themselves are left to `make test-all`."""
    return pytest.param(chain, marks=pytest.mark.slow) if WAITS.get(chain, 0) > 80 and "|" in chain else chain


@pytest.mark.parametrize("chain", [marked(chain) for chain in ROWS])
def test_a_chain_gives_the_bits_of_the_cpu(chain: str) -> None:
    here, there = new_slots(), new_slots()
    for at in range(2):
        given = gradients(RANKS, SHAPE, at)
        theirs = take_step(chain, given, here, at, WEIGHTS)
        sim.LOG.reset()
        ours = take_step(chain, [sim.on_device(g) for g in given], there, at, sim.on_device(WEIGHTS))
        for mine, other in zip(ours, theirs, strict=True):
            assert isinstance(mine, sim.SimTensor)
            if chain.startswith(BY_PRODUCTS):
                torch.testing.assert_close(mine.on_cpu, other)
            else:
                assert torch.equal(mine.on_cpu, other)
    assert len(sim.LOG.waits) == WAITS.get(chain, 0)


# The steps that must never wait, once they have started up: a step is launched, and the host goes on.
NEVER = {
    "qsgd": 1,
    "nuqsgd": 1,
    "nuqsgd(base=0.7)": 1,
    "powersgd(rank=2)": 1,
    "gradiveq(ratio=4, warmup=1, sample=4)": 9,
    "bf16": 1,
    "fp16": 1,
    "float(type=bf16)": 1,
    "feedback(keep=fp32) | qsgd": 1,
    "sign": 1,
    "ternary": 1,
    "randomk(density=0.1)": 1,
    "hadamard(chunk=64) | qsgd(bits=4)": 1,
}


@pytest.mark.parametrize("chain", NEVER)
def test_a_started_chain_never_waits(chain: str) -> None:
    slots = new_slots()
    for at in range(NEVER[chain] + 3):
        given = [sim.on_device(g) for g in gradients(RANKS, SHAPE, at)]
        before = len(sim.LOG.waits)
        take_step(chain, given, slots, at, sim.on_device(WEIGHTS))
        assert at < NEVER[chain] or sim.LOG.waits[before:] == []


@pytest.mark.parametrize("chain", [c for c in NEVER if "gradiveq" not in c])
def test_a_step_that_is_not_finite_changes_no_tensor_of_the_state(chain: str) -> None:
    bad = float("nan") if chain == "sign" else float("inf")
    here, there = new_slots(), new_slots()
    for at in range(4):
        given = gradients(RANKS, SHAPE, at)
        if at == 1:
            given[2][3, 4] = bad
        theirs = take_step(chain, given, here, at, WEIGHTS)
        kept = [s.residual_data.on_cpu.clone() if isinstance(s.residual_data, sim.SimTensor) else None for s in there]
        ours = take_step(chain, [sim.on_device(g) for g in given], there, at, sim.on_device(WEIGHTS))
        if at == 1:
            assert all(not bool(mine.on_cpu.isfinite().all()) for mine in ours if isinstance(mine, sim.SimTensor))
            for slot, before in zip(there, kept, strict=True):
                assert isinstance(slot.residual_data, sim.SimTensor) == (before is not None)
                if before is not None and isinstance(slot.residual_data, sim.SimTensor):
                    assert torch.equal(slot.residual_data.on_cpu, before)
            assert [bool(slot.finite) for slot in there] == [False] * RANKS
        elif chain.startswith(BY_PRODUCTS):
            for mine, other in zip(ours, theirs, strict=True):
                torch.testing.assert_close(mine.cpu(), other)
        else:
            assert all(torch.equal(mine.cpu(), other) for mine, other in zip(ours, theirs, strict=True))
