"""Models of which nothing is compressed: DDP works as without thinwire, until something is."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

import thinwire
from tests.ddp.cases import case, ddp, flat, loss_of, net, train
from thinwire import Codec, StateError, WorldError
from thinwire.ddp.hook import thinwire_hook


@case(2, 3, 4)
def without_compression_there_is_no_hook(rank: int, ranks: int, folder: Path) -> None:
    for plan in ("none", {"first.*": "none", "*": "none"}):
        plain, ours = ddp(net(), bucket_cap_mb=0.01), ddp(net(), bucket_cap_mb=0.01)
        handle = thinwire.attach(ours, plan)
        seen: list[dict[str, Any]] = []
        handle.on_step.append(seen.append)
        train(plain, rank, range(6))
        train(ours, rank, range(6))
        assert ours._comm_hooks == []
        assert torch.equal(flat(plain), flat(ours))
        assert [figures["step"] for figures in seen] == list(range(6))
        assert seen[-1] is handle.metrics()
        handle.close()


@case(2)
def its_figures_are_those_of_a_hook(rank: int, ranks: int, folder: Path) -> None:
    figures = []
    for check in (0, 1):  # what is compared goes through the hook
        model = ddp(net())
        handle = thinwire.attach(model, "none", check=check)
        assert bool(model._comm_hooks) == bool(check)
        train(model, rank, range(3))
        figures.append(handle.metrics())
        handle.close()
    watched, hooked = figures
    assert watched.keys() == hooked.keys()
    for name in ("step", "parameters", "elements", "element_ratio", "bytes_sent", "bytes_received", "wire_ratio"):
        assert watched[name] == hooked[name], name
    assert watched["bytes_sent"] == Codec().wire_bytes(flat(model).numel(), ranks)
    assert watched["exposed_seconds"] > 0
    assert watched["communicate_seconds"] == watched["exposed_seconds"]
    assert watched["codecs"].keys() == {"none"}


@case(2)
def passes_without_averages_are_no_steps(rank: int, ranks: int, folder: Path) -> None:
    model = ddp(net())
    handle = thinwire.attach(model, "none")
    for step in range(4):
        if step % 2 == 0:
            with model.no_sync():
                loss_of(model, rank, step).backward()
        else:
            loss_of(model, rank, step).backward()
    assert handle.step == 2
    loss = loss_of(model, rank, 4)
    with model.no_sync():
        loss.backward()  # too late: DDP goes by the forward pass
    assert handle.step == 3
    handle.close()


@case(2)
def a_codec_that_comes_later_takes_the_slot(rank: int, ranks: int, folder: Path) -> None:
    """With the same results as one that was there from the beginning, and waited."""
    results = []
    for plan, start in (("topk(density=0.05)", 3), ("none", 0)):
        model = ddp(net(), bucket_cap_mb=0.01)
        handle = thinwire.attach(model, plan, start=start)
        optimizer = train(model, rank, range(3))
        if plan == "none":
            handle.use("none")
            assert model._comm_hooks == []
            handle.use("topk(density=0.05)")
        assert [hook for hook, _ in model._comm_hooks] == [thinwire_hook]
        train(model, rank, range(3, 8), optimizer)
        assert handle.step == 8
        assert "topk(density=0.05)" in handle.metrics()["codecs"]
        results.append(flat(model))
        handle.close()
    assert torch.equal(*results)


@case(2)
def what_is_owed_in_a_checkpoint_takes_the_slot(rank: int, ranks: int, folder: Path) -> None:
    model = ddp(net())
    handle = thinwire.attach(model, "topk(density=0.05)")
    train(model, rank, range(2))
    handle.use("none")
    saved, held = handle.state_dict(), handle.engine.slots["first.weight"].residual
    assert held is not None
    handle.close()
    again = ddp(net())
    heir = thinwire.attach(again, "none")
    assert again._comm_hooks == []
    heir.load_state_dict(saved)
    assert [hook for hook, _ in again._comm_hooks] == [thinwire_hook]
    train(again, rank, range(1))
    assert heir.engine.slots["first.weight"].residual is None  # delivered
    heir.close()


@case(2)
def the_slot_is_one_hooks_only(rank: int, ranks: int, folder: Path) -> None:
    model = ddp(net())
    handle = thinwire.attach(model, "none")
    with pytest.raises(WorldError, match=r"already taken by thinwire_hook.*call handle\.use\(\.\.\.\) on the handle"):
        thinwire.attach(model, "qsgd")
    with pytest.raises(StateError, match="a handle cannot be copied or pickled"):
        pickle.dumps(model)
    model.register_comm_hook(None, allreduce_hook)
    with pytest.raises(WorldError, match="has been taken by allreduce_hook since thinwire was attached"):
        handle.use("qsgd")
    assert str(handle.engine.plan) == "none"
    handle.close()
    freed = ddp(net())
    thinwire.attach(freed, "none").close()
    thinwire.attach(freed, "qsgd").close()  # a closed one leaves nothing behind
