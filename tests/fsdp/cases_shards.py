"""FSDP without replicas: four shards, whose reduce-scatter is compressed."""

import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

import thinwire
from tests.fsdp.cases import (
    RANKS,
    case,
    gradients,
    last_of,
    loss_of,
    net,
    sharded,
    train,
    weights,
)
from tests.fsdp.cases_saving import assert_resumes, held
from thinwire import CodecError, Slot, StateError

CHAINS = (
    *(
        "qsgd",
        "nuqsgd(bits=3) | huffman",
        "topk(density=0.05) | rangefloat(bits=8)",
        "fftsgd(theta=0.9, transform=always)",
        "bf16",
    ),
    *("onebit", "terngrad", "dgc(density=0.02, warmup=1)", "delay(steps=1) | topk(density=0.1)"),
    *("demo", "mx", "momentum(beta=0.5) | codebook"),
)


@case
def none_sums_shards_as_fsdp_does(rank: int, folder: Path) -> None:
    """To the order of the sums."""
    bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    cases: list[tuple[dict[str, Any], float]] = [({}, 1e-5), ({"mp_policy": bf16}, 2e-2)]
    for options, rtol in cases:
        for force_sum in (False, True):
            models = [sharded(net(), 1, **options) for _ in range(2)]
            for each in models:
                for module in each.modules():
                    if isinstance(module, FSDPModule):
                        module.set_force_sum_reduction_for_comms(force_sum)
            handle = thinwire.attach(models[0], "none")
            for each in models:
                loss_of(each, rank, 0).backward()
            found, expected = (gradients(each) for each in models)
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                scale = float(value.abs().max())
                assert torch.allclose(found[name], value, rtol=rtol, atol=rtol * scale), name
            assert last_of(handle).step == 0
            handle.close()


@case
def a_mesh_of_one_replica_is_compressed_between_its_shards(rank: int, folder: Path) -> None:
    """Two dimensions, of which the first has nothing to reduce."""
    one = init_device_mesh("cpu", (1, RANKS), mesh_dim_names=("replicate", "shard"))
    models: list[Any] = [fully_shard(net(), mesh=one) for _ in range(2)]
    handle = thinwire.attach(models[0], "none")
    for each in models:
        loss_of(each, rank, 0).backward()
    found, expected = (gradients(each) for each in models)
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-5, atol=1e-7), name
    numel = sum(torch.Size(d.shape).numel() for d in handle.plan)
    assert last_of(handle).bytes_sent == 3 * 4 * numel
    handle.use("qsgd")
    loss_of(models[0], rank, 1).backward()
    assert last_of(handle).wire_ratio > 3
    assert handle.state_dict()["shards"] == RANKS
    handle.close()


@case
def each_shard_is_averaged_as_a_tensor_of_its_own(rank: int, folder: Path) -> None:
    """As `average` does with messages that all ranks read, of whole gradients cut into rows."""
    chains = ("qsgd(bits=4)", "topk(density=0.05)", "fft(chunk=256) | topk(density=0.2) | rangefloat(bits=8)")
    for chain in chains:
        model = sharded(net(), 1)
        handle, slots = thinwire.attach(model, chain, seed=5, measure_every=0), dict[str, list[Slot]]()
        for step in range(3):
            alone = []
            for other in range(RANKS):
                plain = net()
                loss_of(plain, other, step).backward()
                alone.append({name: p.grad for name, p in plain.named_parameters()})
            model.zero_grad()
            loss_of(model, rank, step).backward()
            for name, p in model.named_parameters():
                decision = next(d for d in handle.plan if d.name == name)
                rows = [row_of(each[name], decision.shape, rank) for each in alone]
                seed = 5 * 2**32 + zlib.crc32(f"{name}@{rank}".encode())
                outcome = thinwire.simulate(
                    decision.codec,
                    rows,
                    slots=slots.get(name),
                    seed=seed,
                    step=step,
                    reduction="gathered" if decision.codec.coders else None,
                )
                slots[name] = outcome.slots
                local = p.grad.to_local()
                expected = outcome.means[0][: local.shape[0]]
                assert torch.allclose(local, expected, rtol=1e-5, atol=1e-7), (chain, name, step)
        handle.close()


def row_of(gradient: Tensor | None, shape: tuple[int, ...], shard: int) -> Tensor:
    """One shard of a whole gradient, filled up with zeros."""
    assert gradient is not None
    rows = gradient[shard * shape[0] : (shard + 1) * shape[0]]
    full = torch.zeros(shape)
    full[: rows.shape[0]] = rows
    return full


@case
def every_chain_that_fits_trains(rank: int, folder: Path) -> None:
    for chain in CHAINS:
        model = sharded(net(), 1)
        handle = thinwire.attach(model, chain)
        train(model, rank, range(3))
        assert torch.isfinite(weights(model)).all()
        metrics = last_of(handle)
        assert (metrics.step, metrics.parameters) == (2, 6)
        handle.close()


@case
def bytes_are_those_of_the_messages(rank: int, folder: Path) -> None:
    """Three messages of each parameter: a plain reduce-scatter has the ratio 1."""
    model = sharded(net(), 1)
    handle = thinwire.attach(model, "none")
    train(model, rank, range(1))
    numel = sum(torch.Size(d.shape).numel() for d in handle.plan)
    assert last_of(handle).bytes_sent == 3 * 4 * numel == last_of(handle).bytes_received
    assert last_of(handle).wire_ratio == 1.0
    handle.use("bf16")
    train(model, rank, range(1))
    both = {d.name: (2 if d.compressed else 4) * torch.Size(d.shape).numel() for d in handle.plan}
    assert last_of(handle).bytes_sent == 3 * sum(both.values())
    assert last_of(handle).elements == 4 * numel
    handle.close()


@case
def accumulated_shards_are_exact(rank: int, folder: Path) -> None:
    native, model = sharded(net(), 1), sharded(net(), 1)
    handle = thinwire.attach(model, "none")
    for each in (native, model):
        each.set_requires_gradient_sync(False)
        loss_of(each, rank, 0).backward()
        each.set_requires_gradient_sync(True)
        loss_of(each, rank, 1).backward()
    assert handle.step == 1
    expected = gradients(native)
    for name, value in gradients(model).items():
        assert torch.allclose(value, expected[name], rtol=1e-5, atol=1e-6)
    handle.close()


@case
def what_a_rank_has_not_delivered_is_its_residual(rank: int, folder: Path) -> None:
    """Given = delivered + held, summed over ranks and steps."""
    model, native = sharded(net(), 1), sharded(net(), 1)
    handle = thinwire.attach(model, "topk(density=0.05)")
    given, delivered = torch.zeros(()), torch.zeros(())
    for step in range(3):
        for each in (native, model):
            each.zero_grad()
            loss_of(each, rank, step).backward()
        given = given + gradients(native)["first.weight"]
        delivered = delivered + gradients(model)["first.weight"]
    shape = next(d.shape for d in handle.plan if d.name == "first.weight")
    shards = [held(handle, f"first.weight@{shard}").view(shape) for shard in range(RANKS)]
    missing = torch.cat(shards)[: given.shape[0]]
    dist.all_reduce(missing)
    assert not torch.allclose(delivered, given, atol=1e-4)
    assert torch.allclose(delivered + missing, given.double(), atol=1e-5)
    handle.close()


@case
def a_value_that_is_not_finite_reaches_its_shard(rank: int, folder: Path) -> None:
    for chain in ("qsgd", "topk(density=0.05)"):
        model = sharded(net(), 1)
        handle = thinwire.attach(model, chain)
        loss_of(model, rank, 0).backward()
        before = [slot.residual for slot in handle.engine.slots.values()]
        model.zero_grad()
        (loss_of(model, rank, 1) * (float("nan") if rank == 3 else 1.0)).backward()
        assert not any(torch.isfinite(each).all() for each in gradients(model).values()), chain
        if rank == 3:  # what was not finite has not entered any residual
            after = [slot.residual for slot in handle.engine.slots.values()]
            same = (
                a is b or (a is not None and b is not None and torch.equal(a, b))
                for a, b in zip(before, after, strict=True)
            )
            assert all(same)
        handle.close()


@case
def shards_resume_in_any_phase(rank: int, folder: Path) -> None:
    def load(handle: thinwire.Handle, other: thinwire.Handle) -> None:
        torch.save(handle.state_dict(), folder / f"{rank}.pt")
        other.load_state_dict(torch.load(folder / f"{rank}.pt", weights_only=True))

    def whole(handle: thinwire.Handle, other: thinwire.Handle) -> None:
        other.load_state_dict(handle.full_state_dict())

    assert_resumes(load, "dgc(density=0.02, warmup=4)", rank, 1, 3)
    assert_resumes(whole, "feedback(keep=bf16) | topk(density=0.05)", rank, 1, 2)
    handle = thinwire.attach(sharded(net(), 1), "topk(density=0.05)")
    with pytest.raises(StateError, match="is of 2 shards, and this model has 4"):
        handle.load_state_dict({"shards": 2})
    handle.close()


@case
def chains_that_need_all_ranks_are_refused(rank: int, folder: Path) -> None:
    wrong: list[tuple[Any, str]] = [
        ("powersgd", "all ranks of powersgd must agree"),
        ("gradiveq", "all ranks of pca must agree"),
        ("int8", "all ranks of integers must agree"),
        ("alq", "all ranks of alq must agree"),
        ("signsgd", "all ranks of ballot must agree"),
        ("iwp", "all ranks of importance must agree"),
        ("scalecom", "all ranks of sharedtopk must agree"),
        ("vote", "vote gets its meaning from sums that are encoded again"),
        ("ef21 | topk(density=0.1)", "ef21 learns from the mean"),
    ]
    model = sharded(net(), 1)
    handle = thinwire.attach(model, "qsgd")
    for chain, reason in wrong:
        with pytest.raises(CodecError, match=r"does not work in a reduce-scatter: .*; without replicas, FSDP takes"):
            handle.use(chain)
        with pytest.raises(CodecError, match=reason):
            handle.use(chain)
    assert {str(d.codec) for d in handle.plan if d.compressed} == {"qsgd(bits=4)"}
    loss_of(model, rank, 0).backward()
    handle.close()
    with pytest.raises(CodecError, match="check compares what replicas get"):
        thinwire.attach(model, "qsgd", check=1)
    with pytest.raises(CodecError, match="a step that the scaler skips would be lost"):
        thinwire.attach(model, "topk(density=0.1)", scaler=torch.amp.GradScaler("cpu"))
