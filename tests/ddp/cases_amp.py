"""Automatic mixed precision: overflows on one rank, and residuals that follow the loss scale."""

from pathlib import Path

import torch
from torch import Tensor

import thinwire
from tests.ddp.cases import assert_same_everywhere, case, ddp, flat, loss_of, net, summed, train


def scaled_step(
    model: torch.nn.Module, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, loss: Tensor
) -> None:
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


@case(2)
def residuals_follow_the_loss_scale(rank: int, ranks: int, folder: Path) -> None:
    """Powers of two change no bit: with a scale that doubles every other step, training is the same as without."""
    for chain in (
        "topk(density=0.05)",
        "sign",
        "feedback(keep=bf16) | topk(density=0.1)",
        "powersgd(rank=2)",
        "iwp(density=0.1, momentum=0.9)",
        "dgc(density=0.05, warmup=0)",
        "gradiveq(warmup=1, sample=2, reuse=3)",
    ):
        plain, scaled = ddp(net(), bucket_cap_mb=0.01), ddp(net(), bucket_cap_mb=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)
        handles = thinwire.attach(plain, chain), thinwire.attach(scaled, chain, scaler=scaler)
        train(plain, rank, range(7), torch.optim.SGD(plain.parameters(), lr=0.1))
        optimizer = torch.optim.SGD(scaled.parameters(), lr=0.1)
        for step in range(7):
            scaled_step(scaled, scaler, optimizer, loss_of(scaled, rank, step))
        assert scaler.get_scale() == 2.0**11
        assert torch.equal(flat(plain), flat(scaled)), chain
        for handle in handles:
            handle.close()


@case(2, 3)
def an_overflow_on_one_rank_skips_the_step_everywhere(rank: int, ranks: int, folder: Path) -> None:
    for chain in (
        "none",
        "fp16",
        "topk(density=0.05)",
        "qsgd(bits=4)",
        "sign",
        "integers(bits=8)",
        "nuqsgd | huffman",
        "powersgd(rank=2)",
        "dgc",
        "fftsgd",
        "gradiveq",
    ):
        model = ddp(net(), bucket_cap_mb=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=100)
        handle = thinwire.attach(model, chain, scaler=scaler)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            scaled_step(model, scaler, optimizer, loss_of(model, rank, step))
        before, held = flat(model), held_by(handle)
        loss = loss_of(model, rank, 3)
        scaled_step(model, scaler, optimizer, loss * float("inf") if rank == 1 else loss)
        assert torch.equal(flat(model), before), chain
        assert scaler.get_scale() == 2.0**7
        assert held.keys() == held_by(handle).keys()
        for name, residual in held_by(handle).items():
            assert torch.equal(residual, held[name])
        for step in range(4, 6):
            scaled_step(model, scaler, optimizer, loss_of(model, rank, step))
        assert not torch.equal(flat(model), before)
        assert_same_everywhere(flat(model))
        handle.close()


def held_by(handle: thinwire.Handle) -> dict[str, Tensor]:
    return {n: slot.residual.clone() for n, slot in handle.engine.slots.items() if slot.residual is not None}


@case(2)
def what_a_skipped_step_delivered_is_still_owed(rank: int, ranks: int, folder: Path) -> None:
    """One parameter overflows on one rank; the others were averaged already, and nothing of that was used."""
    model, alone = ddp(net(), bucket_cap_mb=0.01), net()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    handle = thinwire.attach(model, "topk(density=0.05)", scaler=scaler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        scaled_step(model, scaler, optimizer, loss_of(model, rank, step))
    held = held_by(handle)
    if rank == 1:
        model.module.first.weight.register_hook(lambda g: g * float("inf"))
    alone.load_state_dict(model.module.state_dict())
    (loss_of(alone, rank, 3) * 4.0).backward()
    scaled_step(model, scaler, optimizer, loss_of(model, rank, 3))
    after = held_by(handle)
    assert torch.equal(flat(model), flat(alone))
    assert torch.equal(after["first.weight"], held["first.weight"])
    assert alone.second.weight.grad is not None
    given = summed(alone.second.weight.grad.reshape(-1)) / ranks
    assert torch.allclose(summed(after["second.weight"]), summed(held["second.weight"]) + given, rtol=1e-5, atol=1e-6)
    handle.close()


@case(2)
def autocast_trains(rank: int, ranks: int, folder: Path) -> None:
    model = ddp(net(), bucket_cap_mb=0.01)
    scaler = torch.amp.GradScaler("cpu")
    handle = thinwire.attach(model, "topk(density=0.1) | rangefloat(bits=8)", scaler=scaler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, rank, step)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    assert_same_everywhere(flat(model))
    handle.close()
