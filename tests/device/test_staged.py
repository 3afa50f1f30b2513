"""Tensors of a device over Gloo, which moves tensors of the CPU: through the host, with the bits of the CPU."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import thinwire
from tests.contract.rows import gradients
from tests.device import sim
from tests.distributed.processes import run_ranks
from thinwire.core import inputs
from thinwire.core.reducers import sharded
from thinwire.ddp import bucket_hook
from thinwire.worlds import staged

# all-reduce, all-to-all and all-gather, hops, send and receive, lengths, and the broadcast of a mask
CHAINS: list[tuple[str, str | None, int]] = [
    ("none", None, 1 << 17),
    ("qsgd(bits=4)", None, 1 << 17),
    ("qsgd(bits=4)", None, 1),
    ("qsgd(bits=4)", "ring", 1),
    ("topk(density=0.1)", "sharded", 1),
    ("importance(density=0.1)", None, 1),
]


def averages(rank: int, ranks: int) -> list[str]:
    """What differs between the device and the CPU."""
    sim.set_up()
    special = inputs._special
    vars(inputs)["_special"] = lambda t: None if isinstance(t, sim.SimTensor) else special(t)
    wrong = []
    for chain, reduction, sharded.LONG in CHAINS:
        given, w = gradients(ranks, (24, 40))[rank], torch.linspace(-1, 1, 960).view(24, 40)
        wanted = thinwire.average(given, chain, weights=w, reduction=reduction)
        sim.LOG.reset()
        found = thinwire.average(sim.on_device(given), chain, weights=sim.on_device(w), reduction=reduction)
        if not isinstance(found, sim.SimTensor) or not torch.equal(found.on_cpu, wanted):
            wrong.append(f"{chain} {reduction} {sharded.LONG}")
        wrong += sim.LOG.races + sim.LOG.foreign
    return wrong


@pytest.mark.distributed
def test_gloo_moves_what_a_device_encodes() -> None:
    assert run_ranks(2, averages) == [[], []]


def test_nccl_needs_no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for config, direct in (("cpu:gloo,cuda:nccl", {"cpu", "cuda"}), ("cpu:gloo,cuda:gloo", {"cpu"})):
        monkeypatch.setattr(dist, "get_backend_config", lambda group, config=config: config)
        assert staged.moved_directly(None) == direct


def test_a_cuda_graph_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer: Any = SimpleNamespace(is_cuda=True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    bucket_hook.refuse_capture(buffer)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(thinwire.WorldError, match="cannot be captured in a CUDA graph"):
        bucket_hook.refuse_capture(buffer)
