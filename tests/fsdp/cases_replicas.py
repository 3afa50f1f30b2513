"""HSDP, two replicas of two shards: what is averaged, and when."""

import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

import thinwire
from tests.fsdp.cases import (
    assert_same_everywhere,
    case,
    gradients,
    last_of,
    loss_of,
    mesh,
    net,
    sharded,
    train,
    weights,
)
from thinwire import PRESETS, CodecError, Slot

SHORT = {  # presets whose first steps travel uncompressed
    "gradiveq": "gradiveq(warmup=0, sample=2, reuse=2)",
    "dgc": "dgc(density=0.02, warmup=1)",
    "scalecom": "scalecom(warmup=1)",
}


def backward(model: Any, rank: int, steps: range = range(1)) -> dict[str, Tensor]:
    model.zero_grad()
    for step in steps:
        loss_of(model, rank, step).backward()
    return gradients(model)


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor], of_float16: bool = False) -> None:
    rtol, atol = (2.0**-9, 2.0**-23) if of_float16 else (0.0, 0.0)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=rtol, atol=atol), name


@case
def none_gives_the_gradients_of_fsdp(rank: int, folder: Path) -> None:
    bf16, fp16 = {"param_dtype": torch.bfloat16}, {"param_dtype": torch.float16}
    policies: list[dict[str, Any]] = [{}, bf16 | {"reduce_dtype": torch.float32}, bf16, fp16]
    for policy in policies:
        options: dict[str, Any] = {"mp_policy": MixedPrecisionPolicy(**policy)} if policy else {}
        for whole in (True, False):
            native, model = sharded(net(), 2, whole, **options), sharded(net(), 2, whole, **options)
            handle = thinwire.attach(model, "none")
            for step in range(2):
                found, expected = (backward(each, rank, range(step, step + 1)) for each in (model, native))
                # FSDP sums float16 numbers, and the mean of thinwire is rounded before it becomes a sum
                assert_equal(found, expected, of_float16=policy.get("param_dtype") == torch.float16)
            assert last_of(handle).step == 1
            handle.close()


@case
def sums_are_sums(rank: int, folder: Path) -> None:
    native, model = sharded(net(), 2), sharded(net(), 2)
    for each in (native, model):
        for module in each.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
    handle = thinwire.attach(model, "none")
    assert_equal(backward(model, rank), backward(native, rank))
    handle.close()


@case
def shards_are_averaged_as_in_a_simulation(rank: int, folder: Path) -> None:
    """Of what FSDP has reduced inside each replica, with the same residuals from step to step."""
    chains = ("qsgd(bits=4)", "topk(density=0.05)", "powersgd(rank=2)", "feedback(keep=bf16) | sign")
    shard = mesh(2)["shard"]
    for chain in chains:
        inside, model = net(), sharded(net(), 2)
        for part in (inside.first, inside.middle, inside):
            fully_shard(part, mesh=shard)
        handle, slots = thinwire.attach(model, chain, seed=5, measure_every=0), dict[str, list[Slot]]()
        for step in range(3):
            loss_of(inside, rank, step).backward()
            loss_of(model, rank, step).backward()
            for decision in handle.plan:
                mine = padded(dict(inside.named_parameters())[decision.name], decision.shape)
                replicas = gathered(mine, mesh(2)["replicate"].get_group())
                seed = 5 * 2**32 + zlib.crc32(decision.name.encode())
                held = slots.get(decision.name)
                outcome = thinwire.simulate(decision.codec, replicas, slots=held, seed=seed, step=step)
                slots[decision.name] = outcome.slots
                found = padded(dict(model.named_parameters())[decision.name], decision.shape)
                rows = dict(model.named_parameters())[decision.name].grad.to_local().shape[0]
                assert torch.equal(found[:rows], outcome.means[0][:rows]), (chain, decision.name)
            inside.zero_grad()
            model.zero_grad()
        handle.close()


def padded(parameter: Any, shape: tuple[int, ...]) -> Tensor:
    """This rank's shard of a gradient, filled up with zeros."""
    local = parameter.grad.to_local()
    full = torch.zeros(shape)
    full[: local.shape[0]] = local
    return full


def gathered(mine: Tensor, group: dist.ProcessGroup) -> list[Tensor]:
    everyone: list[Any] = [None] * group.size()
    dist.all_gather_object(everyone, mine, group=group)
    return everyone


@case
def every_preset_trains_all_ranks_alike(rank: int, folder: Path) -> None:
    for name in sorted(PRESETS):
        model = sharded(net(), 2)
        handle = thinwire.attach(model, SHORT.get(name, name), check=1)
        train(model, rank, range(4))
        assert_same_everywhere(weights(model))
        assert last_of(handle).step == 3
        handle.close()


@case
def accumulation_is_exact(rank: int, folder: Path) -> None:
    """Without the all-reduce, or without any reduction, until the last micro-batch; a step is counted once."""
    for switch in ("set_requires_all_reduce", "set_requires_gradient_sync"):
        native, model = sharded(net(), 2), sharded(net(), 2)
        handle = thinwire.attach(model, "none")
        for each in (native, model):
            getattr(each, switch)(False)
            backward(each, rank, range(2)) if switch == "set_requires_all_reduce" else loss_of(each, rank, 0).backward()
            assert handle.step == 0
            getattr(each, switch)(True)
            loss_of(each, rank, 2).backward()
        assert_equal(gradients(model), gradients(native))
        assert handle.step == 1
        backward(model, rank, range(3))  # every backward pass is reduced, and added to what is there
        assert handle.step == 4
        assert_equal(gradients(model), backward(native, rank, range(3)))
        handle.close()


class Branches(nn.Module):
    """A matrix that is not trained, and one that the loss may not use."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.frozen, self.other = nn.Linear(32, 67), nn.Linear(67, 32), nn.Linear(32, 80)
        self.frozen.requires_grad_(False)
        self.last = nn.Linear(32, 9)
        self.uses_other = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.frozen(self.body(x))
        return self.last(x) + (self.other(x).sum() if self.uses_other else 0)  # type: ignore[no-any-return]


@case
def parameters_without_gradient_stay_without(rank: int, folder: Path) -> None:
    models: list[Any] = []
    for _ in range(2):
        torch.manual_seed(3)
        models.append(fully_shard(Branches(), mesh=mesh(2)))
    native, model = models
    handle = thinwire.attach(model, "none")
    assert {d.name for d in handle.plan} == {n for n, p in native.named_parameters() if p.requires_grad}
    for uses_other in (False, True, False):
        native.uses_other = model.uses_other = uses_other
        expected = backward(native, rank)
        assert ("other.weight" in expected) == uses_other
        assert_equal(backward(model, rank), expected)
    handle.use("topk(density=0.1)")
    for uses_other in (False, True):
        model.uses_other = uses_other
        backward(model, rank)
    assert "other.weight" in handle.engine.slots
    handle.close()


@case
def replicate_of_fsdp_is_compressed(rank: int, folder: Path) -> None:
    native, model = net(), net()
    whole = init_device_mesh("cpu", (4,), mesh_dim_names=("replicate",))
    for each in (native, model):
        for part in (each.first, each):
            replicate(part, mesh=whole)
    handle = thinwire.attach(model, "none")
    assert_equal(backward(model, rank), backward(native, rank))
    handle.use("qsgd(bits=8)")
    found, expected = backward(model, rank), backward(native, rank)
    for name in found:
        assert_same_everywhere(found[name])
        assert torch.allclose(found[name], expected[name], atol=0.02)
    assert not torch.equal(found["first.weight"], expected["first.weight"])
    assert last_of(handle).wire_ratio > 1.5
    handle.close()


@case
def a_model_inside_a_module_and_a_compiled_one_work(rank: int, folder: Path) -> None:
    outer = nn.ModuleDict({"net": sharded(net(), 2)})
    handle = thinwire.attach(outer, "qsgd(bits=8)")
    assert [d.name for d in handle.plan if d.compressed] == ["net.first.weight", "net.middle.0.weight"]
    train(outer["net"], rank, range(2))
    handle.close()
    model = sharded(net(), 2)
    compiled: Any = torch.compile(model, backend="eager")
    handle = thinwire.attach(compiled, "qsgd(bits=8)")
    assert "middle.0.weight" in {d.name for d in handle.plan}
    train(model, rank, range(2))
    assert handle.step == 2
    handle.close()


@case
def metrics_are_the_bytes_that_leave(rank: int, folder: Path) -> None:
    model = sharded(net(), 2)
    handle = thinwire.attach(model, "qsgd(bits=4)")
    seen: list[thinwire.StepMetrics] = []
    handle.on_step.append(seen.append)
    train(model, rank, range(3))
    sizes = [decision.codec.wire_bytes(decision.shape, 2) for decision in handle.plan]
    assert [metrics.step for metrics in seen] == [0, 1, 2]
    assert all(m.bytes_sent == m.bytes_received for m in seen), seen
    assert all(abs(m.bytes_sent / sum(sizes) - 1) < 0.02 for m in seen), (seen, sizes)
    assert seen[2].codecs["qsgd(bits=4)"].parameters == 2
    assert seen[2].parameters == 6
    assert seen[2].exposed_seconds > 0
    assert handle.report().row_count == 2
    handle.close()


@case
def a_value_that_is_not_finite_reaches_the_replicas(rank: int, folder: Path) -> None:
    for chain in ("qsgd", "topk(density=0.05)", "powersgd"):
        native, model = sharded(net(), 2), sharded(net(), 2)
        handle = thinwire.attach(model, chain)
        backward(model, rank)
        held = {name: slot.residual for name, slot in handle.engine.slots.items()}
        for each in (native, model):
            each.zero_grad()
            (loss_of(each, rank, 1) * (float("nan") if rank == 3 else 1.0)).backward()
        found = gradients(model)
        for name, expected in gradients(native).items():
            assert not torch.isfinite(expected).all()
            assert not torch.isfinite(found[name]).all(), (chain, name)
        for name, residual in held.items():
            after = handle.engine.slots[name].residual
            assert residual is after or (residual is not None and after is not None and torch.equal(residual, after))
        handle.close()


class Scale:
    """A scaler as far as thinwire knows one."""

    def get_scale(self) -> float:
        return 1.0


@case
def a_step_that_the_scaler_skips_is_delivered_later_by_every_shard(rank: int, folder: Path) -> None:
    """One element is not finite, so that only the ranks of its shard see it, and the scaler skips it for all."""
    native, model = sharded(net(), 2), sharded(net(), 2)
    handle = thinwire.attach(model, "topk(density=0.05)", scaler=Scale())
    backward(model, rank)
    held = {name: summed_replicas(slot.residual) for name, slot in handle.engine.slots.items()}
    backward(native, rank, range(1, 2))
    model.zero_grad()
    loss = loss_of(model, rank, 1)
    (loss + model.last.bias[-1] * float("inf")).backward()
    local = model.last.bias.grad.to_local()
    assert bool(torch.isfinite(local).all()) == (mesh(2)["shard"].get_local_rank() == 0)
    for name, before in held.items():
        shape = next(d.shape for d in handle.plan if d.name == name)
        given = padded(dict(native.named_parameters())[name], shape).reshape(-1)
        after = summed_replicas(handle.engine.slots[name].residual)
        assert torch.allclose(after, before + given, atol=1e-6), name
    handle.close()


def summed_replicas(mine: Tensor | None) -> Tensor:
    assert mine is not None
    total = mine.double().clone()
    dist.all_reduce(total, group=mesh(2)["replicate"].get_group())
    return total


@case
def close_gives_the_reductions_back(rank: int, folder: Path) -> None:
    native, model = sharded(net(), 2), sharded(net(), 2)
    thinwire.attach(model, "sign").close()
    assert_equal(backward(model, rank), backward(native, rank))
    handle = thinwire.attach(model, "sign", start=1)
    assert_equal(backward(model, rank), backward(native, rank))
    assert not torch.equal(backward(model, rank)["first.weight"], backward(native, rank)["first.weight"])
    handle.close()
    handle = thinwire.attach(model, "none", headroom=True)
    found = backward(model, rank)
    assert not torch.equal(found["first.weight"], backward(native, rank)["first.weight"])
    handle.close()


@case
def a_mesh_is_taken_for_a_group(rank: int, folder: Path) -> None:
    dimension, x = mesh(2)["replicate"], torch.full((2000,), float(rank))
    expected = thinwire.average(x, "qsgd", group=dimension.get_group())
    assert torch.equal(thinwire.average(x, "qsgd", group=dimension), expected)
    for call in (lambda: thinwire.average(x, "none", group=mesh(2)), lambda: thinwire.GradientState(group=mesh(2))):
        with pytest.raises(CodecError, match=r"group must be a mesh of one dimension.*; got 2 dimensions"):
            call()
    model, plain = net(), net()
    states = thinwire.GradientState(group=dimension), thinwire.GradientState(group=dimension.get_group())
    for each, state in zip((model, plain), states, strict=True):
        loss_of(each, rank, 0).backward()
        thinwire.average_gradients(each, "qsgd", state)
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert p.grad is not None
        assert q.grad is not None
        assert torch.equal(p.grad, q.grad)


class Repeated(nn.Module):
    """Blocks that are computed again in backward passes of their own, which autograd runs inside of the outer one."""

    def __init__(self, nested_only: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 131), nn.ReLU(), nn.Linear(131, 32)) for _ in range(2))
        self.last = nn.Identity() if nested_only else nn.Linear(32, 9)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        return self.last(x)  # type: ignore[no-any-return]


@case
def reentrant_checkpointing_is_one_step(rank: int, folder: Path) -> None:
    for replicas in (2, 1):
        for nested_only in (False, True):
            model = Repeated(nested_only)
            for block in model.blocks:
                fully_shard(block, mesh=mesh(replicas))
            fully_shard(model, mesh=mesh(replicas))
            handle = thinwire.attach(model, "qsgd(bits=8)")
            for step in range(2):
                loss_of(lambda x: model(x.requires_grad_()), rank, step).backward()  # noqa: B023
                assert last_of(handle).step == step
            assert handle.step == 2
            assert last_of(handle).parameters == len(handle.plan)
            handle.close()
