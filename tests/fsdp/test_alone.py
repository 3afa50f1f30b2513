"""A model that FSDP manages in one process: nothing is sent, and the handle has all that others have."""

import warnings
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import thinwire
from tests.distributed.processes import run_ranks
from tests.fsdp.cases import loss_of, net, train
from thinwire.ddp.single_handle import SingleHandle


def train_alone(rank: int, ranks: int) -> dict[str, Any]:
    """With a mesh of one dimension, and of two."""
    both = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"))
    found: dict[str, Any] = {}
    for name, mesh in (("shard", both["shard"]), ("both", both)):
        plain, model = net(), net()
        for part in (plain.first, plain, model.first, model):
            fully_shard(part, mesh=mesh)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            handle = thinwire.attach(model, "topk(density=0.05)")
        assert [str(each.message)[:42] for each in said] == ["thinwire is attached to a model that one p"]
        assert said[0].filename == __file__
        assert isinstance(handle, SingleHandle)
        with pytest.raises(thinwire.WorldError, match="already has a thinwire handle"):
            thinwire.attach(model, "qsgd")
        seen: list[thinwire.StepMetrics] = []
        handle.on_step.append(seen.append)
        for each in (plain, model):
            train(each, 0, range(2))
            each.set_requires_gradient_sync(False)  # type: ignore[operator]
            loss_of(each, 0, 2).backward()
            each.set_requires_gradient_sync(True)  # type: ignore[operator]
            train(each, 0, range(3, 4))
        assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))
        assert [(m.step, m.bytes_sent, m.elements) for m in seen] == [
            (step, 0, sum(p.numel() for p in plain.parameters())) for step in range(3)
        ]
        saved = handle.state_dict()
        handle.engine.step = 0
        handle.load_state_dict(handle.full_state_dict() | saved)
        assert handle.step == 3
        handle.close()
        train(model, 0, range(1))
        assert handle.step == 3
        found[name] = {key: value for key, value in saved.items() if not key.startswith("shard")} | saved["shard0"]
    return found


@pytest.mark.distributed
def test_steps_are_counted_and_saved_in_the_form_of_shards() -> None:
    (found,) = run_ranks(1, train_alone)
    for saved in found.values():
        assert (saved["step"], saved["world_size"]) == (3, 1)
        assert "first.weight" in saved["rank0"]
