"""What real models and loops have: unused, shared and frozen parameters, types, accumulation, joins, compilers."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from tests.ddp.cases import assert_same_everywhere, batch, case, ddp, flat, last_of, loss_of, net, summed, train


class Branches(nn.Module):
    """Which layer works is chosen by the caller."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.never = nn.Parameter(torch.ones(40, 40))

    def forward(self, x: Tensor, which: int) -> Tensor:
        result: Tensor = self.branches[which](x) * self.scale
        return result


def branches(**options: Any) -> DistributedDataParallel:
    torch.manual_seed(3)
    return ddp(Branches(), **options)


@case(2, 3)
def unused_parameters_keep_what_they_hold(rank: int, ranks: int, folder: Path) -> None:
    for view in (False, True):
        model = branches(find_unused_parameters=True, gradient_as_bucket_view=view, bucket_cap_mb=0.01)
        handle = thinwire.attach(model, {"*": {"codec": "topk(density=0.05)", "small": True}})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        # both ranks, one of them, another one, none: each branch goes through all of it
        choices = [(0, 0, 0), (0, 1, 1), (1, 2, 2), (2, 2, 2), (0, 0, 1), (1, 1, 1)]
        for step, chosen in enumerate(choices):
            before = {name: summed(slot.residual) for name, slot in sorted(handle.engine.slots.items())}
            optimizer.zero_grad()
            model(batch(rank, step)[0], chosen[rank]).square().mean().backward()
            for branch in range(3):
                name = f"branches.{branch}.weight"
                p = model.module.get_parameter(name)
                if branch in chosen[:ranks]:
                    assert p.grad is not None
                    assert p.grad.any()
                elif name in before:
                    assert p.grad is None
                    assert torch.equal(summed(handle.engine.slots[name].residual), before[name])
            assert model.module.get_parameter("never").grad is None
            optimizer.step()
        assert_same_everywhere(flat(model))
        handle.close()


@case(2)
def static_graphs_train(rank: int, ranks: int, folder: Path) -> None:
    for cap in (0.005, 25):
        results = []
        for chain in (None, "none", "qsgd(bits=4)"):
            model = branches(static_graph=True, bucket_cap_mb=cap)
            handle = thinwire.attach(model, chain) if chain else None
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for step in range(4):
                optimizer.zero_grad()
                model(batch(rank, step)[0], 0).square().mean().backward()
                optimizer.step()
            assert_same_everywhere(flat(model))
            results.append(flat(model))
            if handle is not None:
                assert handle.step == 4
                handle.close()
        assert torch.equal(results[0], results[1])
        assert not torch.equal(results[0], results[2])


@case(2)
def gradients_as_views_of_buckets_train(rank: int, ranks: int, folder: Path) -> None:
    results = []
    for view in (False, True):
        model = ddp(net(), gradient_as_bucket_view=view, bucket_cap_mb=0.01)
        handle = thinwire.attach(model, "topk(density=0.05) | qsgd(bits=4)")
        train(model, rank, range(5))
        results.append(flat(model))
        handle.close()
    assert torch.equal(*results)


@case(2)
def accumulated_gradients_are_sent_once(rank: int, ranks: int, folder: Path) -> None:
    results = []
    for chain in (None, "none", "topk(density=0.1)"):
        model = ddp(net(), bucket_cap_mb=0.01)
        handle = thinwire.attach(model, chain) if chain else None
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(0, 9, 3):
            optimizer.zero_grad()
            with model.no_sync():
                loss_of(model, rank, step).backward()
                loss_of(model, rank, step + 1).backward()
            loss_of(model, rank, step + 2).backward()
            optimizer.step()
        assert_same_everywhere(flat(model))
        results.append(flat(model))
        if handle is not None:
            assert handle.step == 3
            handle.close()
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


class Tied(nn.Module):
    """The embedding is also the last layer; one layer is frozen; one number scales; one is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, 32)
        self.frozen = nn.Linear(32, 32)
        self.frozen.requires_grad_(False)
        self.head = nn.Linear(32, 64)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.head(self.frozen(self.embedding(tokens)) * self.scale)
        return result


@case(2)
def shared_frozen_and_scalar_parameters(rank: int, ranks: int, folder: Path) -> None:
    results = []
    for chain in (None, "none", {"*": {"codec": "qsgd(bits=4)", "small": True}}):
        torch.manual_seed(1)
        model = ddp(Tied())
        handle = thinwire.attach(model, chain) if chain else None
        if handle is not None:
            assert [d.name for d in handle.plan] == ["scale", "embedding.weight", "head.bias"]
            assert handle.plan[0].shape == ()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            tokens = torch.randint(64, (4, 6), generator=torch.Generator().manual_seed(10 * step + rank))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(tokens).view(-1, 64), tokens.view(-1)).backward()
            optimizer.step()
        assert_same_everywhere(flat(model))
        results.append(flat(model))
        if handle is not None:
            handle.close()
    assert torch.equal(results[0], results[1])


@case(2)
def other_types_of_numbers(rank: int, ranks: int, folder: Path) -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        results = []
        for chain in (None, "none", "topk(density=0.1) | rangefloat(bits=8)", "qsgd(bits=4)", "bf16"):
            model = ddp(net(dtype), bucket_cap_mb=0.01)
            handle = thinwire.attach(model, chain) if chain else None
            train(model, rank, range(3), dtype=dtype)
            assert_same_everywhere(flat(model))
            assert flat(model).dtype == dtype
            results.append(flat(model))
            if handle is not None:
                handle.close()
        assert torch.equal(results[0], results[1])


@case(2)
def mixed_types_of_numbers(rank: int, ranks: int, folder: Path) -> None:
    torch.manual_seed(2)
    module = nn.ModuleDict({"low": nn.Linear(32, 64).bfloat16(), "high": nn.Linear(64, 32)})
    model = ddp(Mixed(module))
    handle = thinwire.attach(model, {"*.bias": "none", "*": "qsgd(bits=4)"})
    for step in range(3):
        model(batch(rank, step)[0]).square().mean().backward()
    assert_same_everywhere(torch.cat([p.grad.reshape(-1).float() for p in model.parameters() if p.grad is not None]))
    handle.close()


class Mixed(nn.Module):
    def __init__(self, layers: nn.ModuleDict) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers["high"](self.layers["low"](x.bfloat16()).float())
        return result


@case(2)
def compiled_modules_train_under_their_own_names(rank: int, ranks: int, folder: Path) -> None:
    plan = {"first.*": "topk(density=0.1)", "*": "qsgd(bits=4)"}
    results = []
    for inside in (None, True, False):
        module: Any = net()
        wrapped: Any = torch.compile(module, backend="eager") if inside else module
        model = ddp(wrapped)
        stepped: Any = torch.compile(model, backend="eager") if inside is False else model
        handle = thinwire.attach(model, plan)
        assert [d.name for d in handle.plan][:2] == ["first.weight", "first.bias"]
        train(stepped, rank, range(3))
        results.append(flat(model))
        handle.close()
    assert torch.allclose(results[0], results[1], rtol=1e-4, atol=1e-5)
    assert torch.allclose(results[0], results[2], rtol=1e-4, atol=1e-5)


@case(2)
def clipped_gradients_stay_equal(rank: int, ranks: int, folder: Path) -> None:
    model = ddp(net(), bucket_cap_mb=0.01)
    handle = thinwire.attach(model, "topk(density=0.1)")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        (loss_of(model, rank, step) * 100).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert norm > 1.0
        optimizer.step()
    assert_same_everywhere(flat(model))
    handle.close()


@case(2)
def two_models_train_in_turn_and_at_once(rank: int, ranks: int, folder: Path) -> None:
    def trained(apart: bool) -> list[Tensor]:
        models = [ddp(net(), bucket_cap_mb=0.01) for _ in range(2)]
        handles = [thinwire.attach(m, c) for m, c in zip(models, ("topk(density=0.05)", "qsgd(bits=4)"), strict=True)]
        for step in range(4):
            for model in models:
                model.zero_grad()
            if apart:
                for model in models:
                    loss_of(model, rank, step).backward()
            else:
                (loss_of(models[0], rank, step) + loss_of(models[1], rank, step)).backward()
            with torch.no_grad():
                for model in models:
                    for p in model.parameters():
                        assert p.grad is not None
                        p.sub_(p.grad, alpha=0.1)
        for handle in handles:
            handle.close()
        return [flat(model) for model in models]

    for one, other in zip(trained(True), trained(False), strict=True):
        assert_same_everywhere(one)
        assert torch.equal(one, other)


@case(2, 3)
def uneven_inputs_join(rank: int, ranks: int, folder: Path) -> None:
    for chain in ("none", "topk(density=0.1)", "qsgd(bits=4)"):
        model = ddp(net(), bucket_cap_mb=0.01)
        handle = thinwire.attach(model, chain)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with model.join():
            for step in range(3 + 2 * rank):
                optimizer.zero_grad()
                loss_of(model, rank, step).backward()
                optimizer.step()
        assert handle.step == 3 + 2 * (ranks - 1)
        assert_same_everywhere(flat(model))
        handle.close()


@case(4)
def models_on_a_part_of_the_ranks(rank: int, ranks: int, folder: Path) -> None:
    groups = [torch.distributed.new_group([0, 1]), torch.distributed.new_group([2, 3])]
    model = ddp(net(), process_group=groups[rank // 2], bucket_cap_mb=0.01)
    handle = thinwire.attach(model, "qsgd(bits=4)", check=1)
    train(model, rank, range(3))
    everyone: list = [None] * ranks
    torch.distributed.all_gather_object(everyone, flat(model))
    assert torch.equal(everyone[0], everyone[1])
    assert torch.equal(everyone[2], everyone[3])
    assert not torch.equal(everyone[0], everyone[2])
    handle.close()


@case(2, 3)
def loops_of_ones_own(rank: int, ranks: int, folder: Path) -> None:
    plan = {"*": {"codec": "topk(density=0.1)", "small": True}}
    state, model = thinwire.GradientState(seed=5), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        optimizer.zero_grad()
        if step == 3:  # a layer is frozen during training
            model.last.requires_grad_(False)
        loss_of(model, rank, step).backward()
        if rank == 0:
            model.first.bias.grad = None  # counts as zero
        thinwire.average_gradients(model, plan, state)
        assert model.first.bias.grad is not None
        optimizer.step()
    assert_same_everywhere(flat(model))
    assert last_of(state).step == 5
    assert last_of(state).bytes_sent > 0


@case(2)
def loops_of_ones_own_equal_the_hook(rank: int, ranks: int, folder: Path) -> None:
    model, own, state = ddp(net(), bucket_cap_mb=0.01), net(), thinwire.GradientState(seed=9)
    handle = thinwire.attach(model, "topk(density=0.1) | qsgd(bits=4)", seed=9)
    train(model, rank, range(4))
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        optimizer.zero_grad()
        loss_of(own, rank, step).backward()
        thinwire.average_gradients(own, "topk(density=0.1) | qsgd(bits=4)", state)
        optimizer.step()
    assert torch.equal(flat(model), flat(own))
    handle.close()
