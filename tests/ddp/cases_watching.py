"""Models of which nothing is compressed: DDP works as without thinwire, until something is."""

import gc
import pickle
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.utils.checkpoint import checkpoint

import thinwire
from tests.ddp.cases import case, ddp, flat, last_of, loss_of, net, train
from tests.ddp.cases_errors import lanes_alive
from thinwire import Codec, StateError, StepMetrics, WorldError
from thinwire.ddp.hook import thinwire_hook


class Checkpointed(nn.Module):
    """Layers that are computed again in backward, each in a pass of its own."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        x.requires_grad_()
        for layer in self.inner.children():
            x = checkpoint(layer, x, use_reentrant=True)
        return x


class Branches(nn.Module):
    """Each rank takes another way."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.ways = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: Tensor, way: int) -> Tensor:
        taken: Tensor = self.ways[way](x)
        return taken


@case(2, 3, 4)
def without_compression_there_is_no_hook(rank: int, ranks: int, folder: Path) -> None:
    for plan in ("none", {"first.*": "none", "*": "none"}):
        plain, ours = ddp(net(), bucket_cap_mb=0.01), ddp(net(), bucket_cap_mb=0.01)
        handle = thinwire.attach(ours, plan)
        seen: list[StepMetrics] = []
        handle.on_step.append(seen.append)
        train(plain, rank, range(6))
        train(ours, rank, range(6))
        assert ours._comm_hooks == []
        assert torch.equal(flat(plain), flat(ours))
        assert [figures.step for figures in seen] == list(range(6))
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
        figures.append(last_of(handle))
        handle.close()
    watched, hooked = figures
    for name in ("step", "parameters", "elements", "element_ratio", "bytes_sent", "bytes_received", "wire_ratio"):
        assert getattr(watched, name) == getattr(hooked, name), name
    assert watched.bytes_sent == Codec().wire_bytes(flat(model).numel(), ranks)
    assert watched.exposed_seconds > 0
    assert watched.codecs.keys() == {"none"}


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
def a_step_is_what_ddp_averages(rank: int, ranks: int, folder: Path) -> None:
    """Once for a forward pass, however many backward passes and graphs within graphs there are."""
    model = ddp(net())
    handle = thinwire.attach(model, "none")
    loss_of(model, rank, 0).backward()
    loss_of(model.module, rank, 0).backward()  # not DDP's
    assert handle.step == 1
    handle.close()
    model = ddp(Checkpointed(net()))
    handle = thinwire.attach(model, "none")
    for step in range(2):
        loss_of(model, rank, step).backward()
    assert handle.step == 2
    handle.close()
    model = ddp(net())
    handle = thinwire.attach(model, "none")
    loss = loss_of(model, rank, 0)
    loss.backward(retain_graph=True)
    loss.backward()
    assert handle.step == 1
    handle.close()


@case(2)
def a_model_that_is_gone_leaves_its_parameters_alone(rank: int, ranks: int, folder: Path) -> None:
    module, before = net(), lanes_alive()
    model = ddp(module)
    seen: list[StepMetrics] = []
    handle = thinwire.attach(model, "none")
    handle.on_step.append(seen.append)
    train(model, rank, range(1))
    del model, handle
    gc.collect()
    loss_of(module, rank, 1).backward()
    assert len(seen) == 1
    assert not any(p._post_accumulate_grad_hooks for p in module.parameters())
    limit = time.monotonic() + 5
    while time.monotonic() < limit and lanes_alive() > before:
        time.sleep(0.02)
    assert lanes_alive() == before
    again = ddp(module)
    thinwire.attach(again, "qsgd").close()


@case(2)
def parameters_that_a_rank_does_not_use(rank: int, ranks: int, folder: Path) -> None:
    plain, ours = (ddp(Branches(), find_unused_parameters=True) for _ in range(2))
    handle = thinwire.attach(ours, "none")
    for step in range(3):
        for model in (plain, ours):
            model(torch.ones(2, 8) * (step + 1), rank).sum().backward()
    assert handle.step == 3
    for p, q in zip(plain.parameters(), ours.parameters(), strict=True):
        assert p.grad is not None
        assert q.grad is not None
        assert torch.equal(p.grad, q.grad)
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
        assert "topk(density=0.05)" in last_of(handle).codecs
        results.append(flat(model))
        handle.close()
    assert torch.equal(*results)


@case(2, 3)
def a_codec_that_leaves_gives_the_slot_back(rank: int, ranks: int, folder: Path) -> None:
    """From then on the steps are those of DDP alone, also if it leaves in the function that is called after a step."""
    for view in (False, True):
        model = ddp(net(), bucket_cap_mb=0.01, gradient_as_bucket_view=view)
        handle = thinwire.attach(model, "qsgd(bits=4)")
        seen: list[int] = []

        def leave(metrics: StepMetrics, handle: thinwire.Handle = handle, seen: list[int] = seen) -> None:
            seen.append(metrics.step)
            if metrics.step == 2:
                handle.use("none")

        handle.on_step.append(leave)
        train(model, rank, range(3))
        assert model._comm_hooks == []
        plain = ddp(net(), bucket_cap_mb=0.01, gradient_as_bucket_view=view)
        plain.load_state_dict(model.state_dict())
        for each in (plain, model):
            train(each, rank, range(3, 7))
        assert torch.equal(flat(plain), flat(model))
        assert seen == list(range(7))
        handle.use("qsgd(bits=4)")
        assert [hook for hook, _ in model._comm_hooks] == [thinwire_hook]
        train(model, rank, range(7, 9))
        assert set(last_of(handle).codecs) == {"none", "qsgd(bits=4)"}
        handle.close()


@case(2)
def what_is_owed_keeps_the_slot(rank: int, ranks: int, folder: Path) -> None:
    model = ddp(net())
    handle = thinwire.attach(model, "topk(density=0.05)")
    optimizer = train(model, rank, range(2))
    handle.use("none")
    assert [hook for hook, _ in model._comm_hooks] == [thinwire_hook]
    train(model, rank, range(2, 3), optimizer)
    assert handle.engine.slots["first.weight"].residual is None  # delivered
    handle.close()


@case(2)
def a_static_graph_keeps_its_hook(rank: int, ranks: int, folder: Path) -> None:
    model = ddp(net(), static_graph=True)
    handle = thinwire.attach(model, "qsgd(bits=4)")
    optimizer = train(model, rank, range(2))
    handle.use("none")
    train(model, rank, range(2, 4), optimizer)
    assert [hook for hook, _ in model._comm_hooks] == [thinwire_hook]
    assert handle.step == 4
    handle.close()


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
    old = thinwire.attach(freed, "none")
    old.close()
    new = thinwire.attach(freed, "none")  # a closed one leaves nothing behind
    old.close()
    with pytest.raises(WorldError, match="already taken by thinwire_hook"):
        thinwire.attach(freed, "qsgd")
    train(freed, rank, range(1))
    assert (old.step, new.step) == (0, 1)
    new.close()
    thinwire.attach(freed, "qsgd").close()
