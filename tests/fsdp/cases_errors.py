"""What cannot work is one sentence, before anything is changed; nothing is uncompressed in silence."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import ReduceOp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import thinwire
from tests.fsdp.cases import case, gradients, loss_of, mesh, net, sharded
from thinwire import WorldError
from thinwire.fsdp.replicas import is_sum


def group_of(model: Any) -> Any:
    """Torch's first parameter group of a model."""
    return model._get_fsdp_state()._fsdp_param_groups[0]


@case
def a_second_handle_is_refused(rank: int, folder: Path) -> None:
    model = sharded(net(), 2)
    handle = thinwire.attach(model, "qsgd")
    with pytest.raises(WorldError, match="already has a thinwire handle; call"):
        thinwire.attach(model, "qsgd")
    handle.close()
    thinwire.attach(model, "qsgd").close()


@case
def ranks_that_disagree_are_named(rank: int, folder: Path) -> None:
    model = sharded(net(), 2)
    with pytest.raises(WorldError, match=r"disagree on the plan: rank 0 has .*qsgd.*, rank 3 has .*sign"):
        thinwire.attach(model, "sign" if rank == 3 else "qsgd")
    handle = thinwire.attach(model, "qsgd")
    with pytest.raises(WorldError, match="disagree on the new plan"):
        handle.use("sign" if rank == 3 else "topk(density=0.1)")
    handle.close()


@case
def what_cannot_be_compressed_is_refused(rank: int, folder: Path) -> None:
    apart = net()
    fully_shard(apart.first, mesh=mesh(1))
    fully_shard(apart, mesh=mesh(2))
    with pytest.raises(WorldError, match="sharded over different meshes"):
        thinwire.attach(apart, "qsgd")
    tp = net()
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "tp"))
    parallelize_module(tp, both["tp"], {"first": ColwiseParallel()})
    fully_shard(tp, mesh=both["shard"])
    with pytest.raises(WorldError, match=r"first\.weight was a DTensor before fully_shard"):
        thinwire.attach(tp, "qsgd")
    empty = nn.Module()
    fully_shard(empty, mesh=mesh(2))
    with pytest.raises(WorldError, match="fully_shard manages no parameter"):
        thinwire.attach(empty, "qsgd")


@case
def a_parameter_that_is_unfrozen_later_is_named(rank: int, folder: Path) -> None:
    for replicas in (2, 1):
        module = net()
        module.first.weight.requires_grad_(False)
        model = sharded(module, replicas)
        handle = thinwire.attach(model, "qsgd")
        loss_of(model, rank, 0).backward()
        model.first.weight.requires_grad_(True)
        message = r"first\.weight has a gradient, and was frozen when thinwire was attached; .* attach again"
        with pytest.raises(WorldError, match=message):
            loss_of(model, rank, 1).backward()
        handle.close()
        module = net()
        module.first.weight.requires_grad_(False)
        model = sharded(module, replicas)
        handle = thinwire.attach(model, "qsgd")
        loss_of(model, rank, 0).backward()
        handle.close()
        model.first.weight.requires_grad_(True)
        handle = thinwire.attach(model, "qsgd")
        loss_of(model, rank, 1).backward()
        assert "first.weight" in {d.name for d in handle.plan if d.compressed}
        assert handle.step == 1
        handle.close()


@case
def parameters_that_were_replaced_are_found(rank: int, folder: Path) -> None:
    """As `from_pretrained` of transformers replaces them, before FSDP's first forward pass."""
    for replicas in (2, 1):
        native, model = sharded(net(), replicas), sharded(net(), replicas)
        for each in (native, model):
            each.load_state_dict({name: x.clone() for name, x in each.state_dict().items()}, assign=True)
        handle = thinwire.attach(model, "none")
        for each in (native, model):
            loss_of(each, rank, 0).backward()
        expected = gradients(native)
        for name, value in gradients(model).items():
            assert torch.allclose(value, expected[name], rtol=1e-5, atol=1e-7), name
        assert handle.step == 1
        handle.close()


@case
def another_operation_is_refused(rank: int, folder: Path) -> None:
    assert is_sum(ReduceOp(ReduceOp.SUM))
    assert not is_sum(ReduceOp(ReduceOp.AVG))
    for op, name in ((ReduceOp(ReduceOp.MAX), "MAX"), (ReduceOp.PREMUL_SUM, "PREMUL_SUM")):
        with pytest.raises(WorldError, match=rf"asks for the reduction {name}, .*; leave out set_gradient"):
            is_sum(op)


@case
def a_torch_without_these_attributes_is_refused(rank: int, folder: Path) -> None:
    """Later versions of torch may rename what is private."""
    model = sharded(net(), 2)
    info, group = group_of(model).mesh_info, group_of(model)
    for owner, name in ((info, "replicate_process_group"), (group, "all_reduce_grads"), (group, "fsdp_params")):
        value = owner.__dict__.pop(name)
        with pytest.raises(WorldError, match=rf"FSDP of torch .* has no \w+\.{name} .* would travel uncompressed"):
            thinwire.attach(model, "qsgd")
        setattr(owner, name, value)
    states: Any = type(model._get_fsdp_state())
    ends = states._root_post_backward_final_callback
    del states._root_post_backward_final_callback
    with pytest.raises(WorldError, match=r"FSDP of torch .* has no \w+\._root_post_backward_final_callback"):
        thinwire.attach(model, "qsgd")
    states._root_post_backward_final_callback = ends
    thinwire.attach(model, "qsgd").close()


@case
def a_reduction_that_goes_elsewhere_is_an_error(rank: int, folder: Path) -> None:
    """Torch may reduce by another way than the one that was replaced, or another selection of gradients."""
    model = sharded(net(), 2)
    handle = thinwire.attach(model, "qsgd")
    group = group_of(model)
    ours = group.mesh_info.replicate_process_group
    group.mesh_info.replicate_process_group = ours.inner
    with pytest.raises(WorldError, match="has a reduction of its own where thinwire enters"):
        loss_of(model, rank, 0).backward()
    group.mesh_info.replicate_process_group = ours
    handle.close()

    model = sharded(net(), 2)
    handle = thinwire.attach(model, "qsgd")
    handle._groups[0].reduced = list  # type: ignore[attr-defined]
    with pytest.raises(WorldError, match=r"FSDP reduces \d+ elements, and the parameters that have a gradient have 0"):
        loss_of(model, rank, 0).backward()
    handle.close()


@case
def replicas_that_differ_are_named(rank: int, folder: Path) -> None:
    model = sharded(net(), 2)
    handle = thinwire.attach(model, "qsgd", check=1)
    right = handle.engine.average

    def faulty(pieces: Any, world: Any, whole: Any = None) -> None:
        right(pieces, world, whole)
        if rank == 3:
            pieces[0].gradient.view(-1)[0] += 1.0

    handle.engine.average = faulty  # type: ignore[method-assign]
    if rank % 2:
        with pytest.raises(
            WorldError, match=r"at step 0 the averaged gradients of rank 1 differ .* 1 is rank 3 of the"
        ):
            loss_of(model, rank, 0).backward()
    else:
        loss_of(model, rank, 0).backward()
    handle.close()


@case
def an_error_names_the_parameters_and_the_ranks(rank: int, folder: Path) -> None:
    model = sharded(net(), 2)
    handle = thinwire.attach(model, "qsgd")
    engine, right = handle.engine, handle.engine.average

    def failing(*given: Any) -> None:
        raise ValueError("a broken codec")

    engine.average = failing  # type: ignore[assignment, method-assign]
    group = f"rank 0 is rank {rank % 2} of the job, rank 1 is rank {rank % 2 + 2} of the job"
    where = rf"\[rank {rank}, step 0, averaging .*; its group: {group}\]"
    with pytest.raises(WorldError, match=rf"ValueError: a broken codec {where}"):
        loss_of(model, rank, 0).backward()
    engine.average = right  # type: ignore[method-assign]
    handle.close()
