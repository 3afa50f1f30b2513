"""One process without DDP: the handle does nothing, has all that others have, and other models get a sentence."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import thinwire
from tests.ddp.cases import Net, batch, last_of, loss_of, net, train
from thinwire import Handle, StateError, WorldError
from thinwire.ddp.ddp_handle import DDPHandle
from thinwire.ddp.single_handle import SingleHandle


@pytest.fixture
def handle_of() -> Iterator[Any]:
    handles = []

    def attach(model: nn.Module, plan: Any = "topk(density=0.1)", **options: Any) -> Handle:
        with pytest.warns(RuntimeWarning, match="one process trains alone: nothing is sent") as caught:
            handles.append(thinwire.attach(model, plan, **options))
        assert caught[0].filename == __file__
        return handles[-1]

    yield attach
    for handle in handles:
        handle.close()


@pytest.mark.parametrize("kind", [DDPHandle, SingleHandle])
def test_every_handle_has_all_public_members(kind: type[Handle]) -> None:
    shared = {name for name in dir(Handle) if not name.startswith("_")}
    assert {"metrics", "use", "report", "close", "log_to", "on_step", "stateful", "plan", "check"} < shared
    assert [name for name in shared if getattr(getattr(kind, name), "__isabstractmethod__", False)] == []
    assert issubclass(kind, Handle)


def test_training_is_as_without_thinwire(handle_of: Any) -> None:
    plain, attached = net(), net()
    handle = handle_of(attached, start=1, check=2)
    seen: list[thinwire.StepMetrics] = []
    handle.on_step.append(seen.append)
    train(plain, 0, range(3))
    train(attached, 0, range(3))
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), attached.parameters(), strict=True))
    assert [metrics.step for metrics in seen] == [0, 1, 2]
    assert handle.step == 3
    last = last_of(handle)
    assert (last.bytes_sent, last.rounds, last.elements) == (0, 0, sum(p.numel() for p in plain.parameters()))
    assert "after 3 steps" in str(handle.report().title)
    assert handle.dial == 1.0
    assert not handle.headroom


def test_a_step_is_a_forward_pass_and_the_backward_passes_after_it(handle_of: Any) -> None:
    model = net()
    handle = handle_of(model)
    x, _ = batch(0, 0)
    first, second = model(x).sum(), model(x).square().sum()
    first.backward()
    second.backward()
    assert handle.step == 1
    hidden = torch.utils.checkpoint.checkpoint(lambda x: model.second(model.first(x)), x, use_reentrant=False)
    model.last(hidden).sum().backward()  # as LightningModule.training_step: the model itself is not called
    assert handle.step == 2
    with torch.no_grad():
        model(x)
    handle.close()
    loss_of(model, 0, 0).backward()
    assert handle.step == 2


def test_another_codec_can_be_used(handle_of: Any) -> None:
    handle = handle_of(net(), "qsgd")
    handle.use("powersgd(rank=2)")
    assert {str(decision.codec) for decision in handle.plan} > {str(thinwire.Codec.parse("powersgd(rank=2)"))}
    with pytest.raises(thinwire.CodecError, match="known are"):
        handle.use("qsdg")
    for wrong in (2, float("nan"), "half"):
        with pytest.raises(thinwire.CodecError, match="dial must be a number from 0 to 1; got"):
            handle.dial = wrong


def test_the_state_of_several_ranks_goes_round(handle_of: Any) -> None:
    """Each rank of a run of two has a residual; one process keeps their sum and hands it on."""
    handle = handle_of(net())
    saved = handle.stateful().state_dict()
    parts = {}
    for rank in range(2):
        slots = {name: dict(slot) for name, slot in saved["rank0"].items()}
        slots["first.weight"]["residual"] = torch.full((64 * 32,), float(rank + 1))
        parts[f"rank{rank}"] = slots
    for slots in parts.values():
        for slot in slots.values():
            slot["steps"] = 5
    handle.load_state_dict({**saved, **parts, "world_size": 2, "step": 5})
    again = handle.state_dict()
    assert (again["step"], again["world_size"]) == (5, 1)
    assert again["rank0"]["first.weight"]["residual"].tolist() == [3.0] * (64 * 32)
    train(net(), 0, range(1))
    other = handle_of(net())
    other.load_state_dict(handle.full_state_dict())
    assert torch.equal(other.state_dict()["rank0"]["first.weight"]["residual"], torch.full((64 * 32,), 3.0))
    with pytest.raises(StateError, match="written with the plan topk"):
        handle_of(net(), "qsgd").load_state_dict(again)


def test_a_plain_model_on_several_ranks_gets_the_line_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.delitem(sys.modules, "accelerate", raising=False)  # another test may have started it
    line = r"got Net on 4 ranks\. Write torch.*init_process_group\(\), then model = DistributedDataParallel\(model\)"
    with pytest.raises(WorldError, match=line):
        thinwire.attach(net(), "qsgd")

    class LightningModule(Net):
        pass

    with pytest.raises(WorldError, match=r"Trainer\(strategy='ddp', callbacks=\[ThinwireCallback\(plan\)\]\)"):
        thinwire.attach(LightningModule(), "qsgd")


def test_models_that_others_average_are_refused() -> None:
    class DeepSpeedEngine(nn.Module):
        __module__ = "deepspeed.runtime.engine"

    class FullyShardedDataParallel(nn.Module):
        __module__ = "torch.distributed.fsdp.fully_sharded_data_parallel"

    with pytest.raises(WorldError, match=r"DeepSpeed has no place for a codec; train with DistributedDataParallel"):
        thinwire.attach(DeepSpeedEngine(), "qsgd")
    with pytest.raises(WorldError, match=r"FSDP1.*shard with torch\.distributed\.fsdp\.fully_shard"):
        thinwire.attach(nn.Sequential(FullyShardedDataParallel()), "qsgd")
    with pytest.raises(WorldError, match=r"start one process for each device with torchrun"):
        thinwire.attach(nn.DataParallel(net()), "qsgd")
    wrong: Any = "model"
    with pytest.raises(WorldError, match="attach needs a DistributedDataParallel model; got str"):
        thinwire.attach(wrong, "qsgd")
