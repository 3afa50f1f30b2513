"""Checkpoints of sharded models: resumed is the same as never stopped, whatever the number of replicas."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import thinwire
from tests.fsdp.cases import case, mesh, net, sharded, train, weights
from thinwire import StateError

PHASES = {2: "gradiveq(warmup=1, sample=2, reuse=3)", 3: "dgc(density=0.02, warmup=4)", 4: "powersgd"}


def begun(chain: str, rank: int, replicas: int, steps: int) -> tuple[Any, thinwire.Handle, torch.optim.Optimizer]:
    model = sharded(net(), replicas)
    handle = thinwire.attach(model, chain, seed=3)
    return model, handle, train(model, rank, range(steps))


def resumed(model: Any, optimizer: torch.optim.Optimizer, chain: str, replicas: int) -> Any:
    """A new process as far as training is concerned; the handle's state is still to be loaded."""
    again = sharded(net(), replicas)
    again.load_state_dict(model.state_dict())
    new = torch.optim.SGD(again.parameters(), lr=0.1, momentum=0.9)
    new.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return again, thinwire.attach(again, chain, seed=3), new


def assert_resumes(load: Any, chain: str, rank: int, replicas: int, steps: int) -> None:
    """`load(handle, other)` moves the state of one handle into another."""
    model, handle, optimizer = begun(chain, rank, replicas, steps)
    again, other, new = resumed(model, optimizer, chain, replicas)
    load(handle, other)
    assert other.step == steps
    train(model, rank, range(steps, steps + 4), optimizer)
    train(again, rank, range(steps, steps + 4), new)
    assert torch.equal(weights(model), weights(again)), (chain, steps)
    handle.close()
    other.close()


@case
def replicas_resume_in_any_phase(rank: int, folder: Path) -> None:
    def load(handle: thinwire.Handle, other: thinwire.Handle) -> None:
        torch.save(handle.state_dict(), folder / f"{rank}.pt")
        other.load_state_dict(torch.load(folder / f"{rank}.pt", weights_only=True))

    for steps, chain in PHASES.items():
        assert_resumes(load, chain, rank, 2, steps)


@case
def one_file_and_a_distributed_checkpoint_resume(rank: int, folder: Path) -> None:
    def whole(handle: thinwire.Handle, other: thinwire.Handle) -> None:
        state = handle.stateful().state_dict()
        if rank == 0:
            torch.save(state, folder / "whole.pt")
        dist.barrier()
        other.stateful().load_state_dict(torch.load(folder / "whole.pt", weights_only=True))

    def distributed(handle: thinwire.Handle, other: thinwire.Handle) -> None:
        save({"thinwire": handle.state_dict()}, checkpoint_id=str(folder / "dcp"))
        other.load_distributed(folder / "dcp")

    for load in (whole, distributed):
        assert_resumes(load, "topk(density=0.05)", rank, 2, 2)


def held(handle: thinwire.Handle, name: str) -> torch.Tensor:
    residual = handle.engine.slots[name].residual
    assert residual is not None
    return residual.double()


@case
def another_number_of_replicas_keeps_the_sum_of_residuals(rank: int, folder: Path) -> None:
    """Four replicas, then two, then four; each rank has a whole copy of the model."""
    names = ("replicate", "shard")
    four = DeviceMesh("cpu", [[0], [1], [2], [3]], mesh_dim_names=names)
    two = DeviceMesh("cpu", [[0], [1]], mesh_dim_names=names)

    def on(device_mesh: DeviceMesh, saved: Any, steps: range) -> tuple[dict[str, Any], torch.Tensor, torch.Tensor]:
        model: Any = fully_shard(net(), mesh=device_mesh)
        handle = thinwire.attach(model, "topk(density=0.05)")
        group = device_mesh["replicate"].get_group()
        if saved is not None:
            handle.load_state_dict(saved)
        before = held(handle, "first.weight") if saved is not None else torch.zeros(())
        dist.all_reduce(before, group=group)
        train(model, rank, steps)
        after = held(handle, "first.weight")
        dist.all_reduce(after, group=group)
        state = handle.full_state_dict()
        handle.close()
        return state, before, after

    state, _, first = on(four, None, range(2))
    if rank < 2:
        state, loaded, second = on(two, state, range(2, 3))
        assert torch.allclose(loaded, first, rtol=1e-5, atol=1e-8)
        torch.save((state, second), folder / f"{rank}.pt")
    dist.barrier()
    state, second = torch.load(folder / "0.pt", weights_only=True)
    _, loaded, _ = on(four, state, range(3, 4))
    assert torch.allclose(loaded, second, rtol=1e-5, atol=1e-8)


@case
def a_checkpoint_of_other_shards_changes_nothing(rank: int, folder: Path) -> None:
    _, handle, _ = begun("topk(density=0.05)", rank, 2, 1)
    saved, before = handle.state_dict(), held(handle, "first.weight")
    shard = mesh(2)["shard"].get_local_rank()
    wrong: list[tuple[Any, str]] = [
        (3, "this is not a thinwire checkpoint"),
        ({"thinwire": 3}, "this checkpoint is of a model without shards; load what"),
        ({}, "it has no 'shards'"),
        ({**saved, "shards": 4}, "is of 4 shards, and this model has 2; load it into a mesh with as many"),
        ({"shards": 2}, f"lacks shard {shard} of 2; save state_dict"),
        ({**saved, f"shard{shard}": {}}, "this is not a thinwire checkpoint: it has no 'thinwire'"),
    ]
    for each, message in wrong:
        with pytest.raises(StateError, match=message):
            handle.load_state_dict(each)
    # one rank has another file than the others: no rank loads anything
    with pytest.raises(StateError, match="lacks shard 1" if rank == 3 else "rank 3 cannot load its checkpoint, so no"):
        handle.load_state_dict({"shards": 2} if rank == 3 else saved)
    assert torch.equal(held(handle, "first.weight"), before)
    handle.close()
