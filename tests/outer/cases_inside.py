"""DDP and FSDP2 inside a host, outer steps between hosts: two hosts of two ranks; each function asserts."""

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

import thinwire
from tests.ddp.cases import assert_same_everywhere, ddp, flat, net, raised, train


def mesh_of_hosts() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


def odd_net() -> nn.Sequential:
    """Rows that two shards cannot share equally."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(32, 17), nn.ReLU(), nn.Linear(17, 10))


def sharded(mesh: DeviceMesh) -> nn.Sequential:
    model = odd_net()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def whole(model: nn.Module) -> Tensor:
    sharded_ones: Any = list(model.parameters())
    return torch.cat([p.detach().full_tensor().reshape(-1) for p in sharded_ones])


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def ddp_inside_is_ddp_everywhere_if_every_step_is_exchanged(rank: int, ranks: int) -> None:
    mesh = mesh_of_hosts()
    model, reference = ddp(net(), process_group=mesh["shard"].get_group()), ddp(net())
    optimizer = sgd(model)
    options: dict[str, Any] = {"every": 1, "outer": "sgd(lr=1)"}
    assert "averages gradients over ranks" in raised(lambda: thinwire.attach_outer(model, optimizer, **options))
    handle = thinwire.attach_outer(model, optimizer, group=mesh["replicate"], **options)
    assert handle.fragments[0][0] == "first.weight"
    train(model, rank, range(5), optimizer)
    train(reference, rank, range(5), sgd(reference))
    torch.testing.assert_close(flat(model), flat(reference), rtol=0, atol=1e-6)
    assert_same_everywhere(flat(model))
    handle.close()


def ranks_of_a_host_stay_equal_with_a_lossy_codec(rank: int, ranks: int) -> None:
    mesh = mesh_of_hosts()
    model = ddp(net(), process_group=mesh["shard"].get_group())
    optimizer = sgd(model)
    inside = thinwire.attach(model, "qsgd(bits=8)")
    handle = thinwire.attach_outer(model, optimizer, "qsgd(bits=4)", every=2, overlap=1, group=mesh["replicate"])
    train(model, rank, range(5), optimizer)
    assert_same_everywhere(flat(model))
    handle.close()
    inside.close()


def fsdp_inside_is_ddp_everywhere_if_every_step_is_exchanged(rank: int, ranks: int) -> None:
    """Attached before the first forward pass, in which FSDP2 pads its shards."""
    mesh = mesh_of_hosts()
    model, reference = sharded(mesh["shard"]), ddp(odd_net())
    optimizer = sgd(model)
    handle = thinwire.attach_outer(model, optimizer, every=1, outer="sgd(lr=1)", fragments=1, group=mesh["replicate"])
    train(model, rank, range(5), optimizer)
    train(reference, rank, range(5), sgd(reference))
    torch.testing.assert_close(whole(model), flat(reference), rtol=0, atol=1e-6)
    handle.close()


def fsdp_inside_resumes_bit_for_bit(rank: int, ranks: int) -> None:
    mesh = mesh_of_hosts()
    options: dict[str, Any] = {"every": 2, "fragments": 2, "overlap": 1, "group": mesh["replicate"]}

    def attached() -> tuple[Any, torch.optim.Optimizer, thinwire.OuterHandle]:
        model = sharded(mesh["shard"])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        return model, optimizer, thinwire.attach_outer(model, optimizer, "topk(density=0.1)", **options)

    model, optimizer, handle = attached()
    train(model, rank, range(3), optimizer)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), handle.state_dict()))
    of_one_host = handle.full_state_dict()
    train(model, rank, range(3, 6), optimizer)
    handle.close()
    again, other, resumed = attached()
    again.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    resumed.load_state_dict(saved[2])
    train(again, rank, range(3, 6), other)
    assert torch.equal(whole(again), whole(model))
    # a framework that saves rank 0 only gives its shard to all
    shared: list[Any] = [of_one_host if rank == 0 else None]
    dist.broadcast_object_list(shared)
    if rank % 2 == 0:
        resumed.load_state_dict(shared[0])
    else:
        assert "is of the shard 0 of 2, and this rank has the shard 1 of 2" in raised(
            lambda: resumed.load_state_dict(shared[0])
        )
    resumed.close()


def shards_are_not_mixed(rank: int, ranks: int) -> None:
    mesh = mesh_of_hosts()
    model = sharded(mesh["shard"])
    for group in (None, mesh["shard"]):
        assert "would mix different shards" in raised(lambda: thinwire.attach_outer(model, sgd(model), group=group))  # noqa: B023
    both = sharded(mesh)
    assert "FSDP2 averages gradients of 0.weight" in raised(
        lambda: thinwire.attach_outer(both, sgd(both), group=mesh["replicate"])
    )
    assert "one dimension" in raised(lambda: thinwire.attach_outer(model, sgd(model), group=mesh))


INSIDE = (
    ddp_inside_is_ddp_everywhere_if_every_step_is_exchanged,
    ranks_of_a_host_stay_equal_with_a_lossy_codec,
    fsdp_inside_is_ddp_everywhere_if_every_step_is_exchanged,
    fsdp_inside_resumes_bit_for_bit,
    shards_are_not_mixed,
)
