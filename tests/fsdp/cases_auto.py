"""`attach(model, "auto")` for sharded models; what it decides is tested without clocks in tests/planner."""

from pathlib import Path
from typing import Any
from unittest import mock

import torch.distributed as dist

import thinwire
from tests.fsdp.cases import RANKS, assert_same_everywhere, case, net, sharded, train, weights
from thinwire.planner import auto_budget, auto_look
from thinwire.planner.auto_steps import Timing


def decided(rank: int, replicas: int, text: str) -> tuple[Any, thinwire.Handle]:
    """A model that is trained until auto has decided, whatever this machine is like."""
    model = sharded(net(), replicas)
    handle = thinwire.attach(model, text)
    always = mock.patch.multiple(Timing, is_less_than=lambda *_: True, is_unclear_beside=lambda *_: False)
    eager = mock.patch.multiple(auto_look, _WORTH_MEASURING=-1.0, _WORTH_MEASURED=1e9, _WORTH_TRYING=1e9, _NEAR=1e9)
    enough = mock.patch.object(auto_budget, "SPENT", 1e6)  # steps' time, however slow this machine is
    with eager, always, enough:
        train(model, rank, range(40))
    everyone: list[Any] = [None] * RANKS
    dist.all_gather_object(everyone, handle.decisions)
    assert all(each == everyone[0] for each in everyone)
    return model, handle


@case
def auto_decides_alike_between_replicas(rank: int, folder: Path) -> None:
    model, handle = decided(rank, 2, "auto(candidates='qsgd(bits=4); bf16')")
    (decision,) = handle.decisions
    assert set(decision.measured) <= {"qsgd(bits=4)", "bf16", "by layer"}
    assert decision.plan == str(handle.engine.plan) != "none"
    assert_same_everywhere(weights(model))
    saved = handle.state_dict()
    handle.close()
    again = thinwire.attach(sharded(net(), 2), "auto")
    again.load_state_dict(saved)
    assert again.decisions == [decision]
    assert str(again.engine.plan) == decision.plan
    again.close()


@case
def auto_passes_over_codecs_that_a_reduce_scatter_cannot_take(rank: int, folder: Path) -> None:
    model, handle = decided(rank, 1, "auto(quality=bold, candidates='powersgd(rank=1); qsgd(bits=4)')")
    (decision,) = handle.decisions
    assert "powersgd" not in decision.plan
    assert "qsgd(bits=4)" in decision.measured
    assert "powersgd(rank=1)" in decision.predicted.keys() - decision.measured.keys()
    assert_same_everywhere(weights(model))
    handle.close()
