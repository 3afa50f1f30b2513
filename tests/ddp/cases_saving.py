"""Checkpoints: resumed is the same as never stopped; what does not fit is refused and changes nothing."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

import thinwire
from tests.ddp.cases import assert_same_everywhere, case, ddp, flat, last_of, loss_of, net, summed, train
from tests.ddp.cases_training import CHAINS, SYSTEMS
from thinwire import StateError


def begun(
    chain: Any, rank: int, steps: int = 3, group: Any = None, **options: Any
) -> tuple[Any, thinwire.Handle, torch.optim.Optimizer]:
    model = ddp(net(), bucket_cap_mb=0.01, process_group=group, **options)
    handle = thinwire.attach(model, chain, seed=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, rank, range(steps), optimizer)
    return model, handle, optimizer


def resumed(model: Any, optimizer: torch.optim.Optimizer, chain: Any) -> tuple[Any, thinwire.Handle, Any]:
    """A new process as far as training is concerned; the handle's state is still to be loaded."""
    again = ddp(net(), bucket_cap_mb=0.01)
    again.load_state_dict(model.state_dict())
    handle = thinwire.attach(again, chain, seed=3)
    new = torch.optim.SGD(again.parameters(), lr=0.1, momentum=0.9)
    new.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return again, handle, new


def slots_equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """The same but for the name of the run."""
    a, b = ({k: v for k, v in state.items() if k != "run"} for state in (a, b))
    if a.keys() != b.keys():
        return False
    return all(
        slots_equal(a[k], b[k])
        if isinstance(a[k], dict)
        else torch.equal(a[k], b[k])
        if isinstance(a[k], torch.Tensor)
        else a[k] == b[k]
        for k in a
    )


@case(2)
def resumed_training_equals_training_that_never_stopped(rank: int, ranks: int, folder: Path) -> None:
    plans: list[Any] = [
        *CHAINS,
        *SYSTEMS,
        {"first.*": "qsgd(bits=4)", "*": "feedback(keep=fp32) | nuqsgd(bits=3) | elias"},
    ]
    for number, plan in enumerate(plans):
        model, handle, optimizer = begun(plan, rank)
        torch.save(handle.state_dict(), folder / f"{number}-{rank}.pt")
        again, other, new = resumed(model, optimizer, plan)
        other.load_state_dict(torch.load(folder / f"{number}-{rank}.pt", weights_only=True))
        assert other.step == 3
        train(model, rank, range(3, 8), optimizer)
        train(again, rank, range(3, 8), new)
        assert torch.equal(flat(model), flat(again)), plan
        assert slots_equal(handle.state_dict(), other.state_dict())
        handle.close()
        other.close()


@case(2)
def distributed_checkpoints_resume_exactly(rank: int, ranks: int, folder: Path) -> None:
    for number, chain in enumerate(["qsgd", "sign", *SYSTEMS]):
        model, handle, optimizer = begun(chain, rank)
        place = str(folder / str(number))
        save({"thinwire": handle.state_dict(), "model": model.module.state_dict()}, checkpoint_id=place)
        again, other, new = resumed(model, optimizer, chain)
        other.load_distributed(place)
        assert slots_equal(handle.state_dict(), other.state_dict())
        train(model, rank, range(3, 6), optimizer)
        train(again, rank, range(3, 6), new)
        assert torch.equal(flat(model), flat(again)), chain
        handle.close()
        other.close()
    with pytest.raises(StateError, match="has no thinwire state under 'compressor'"):
        other.load_distributed(place, "compressor")


@case(2)
def distributed_checkpoints_load_in_place(rank: int, ranks: int, folder: Path) -> None:
    """The usual recipe of torch.distributed.checkpoint, with a handle that has not taken a step."""
    fourier = "fftsgd(theta=0.9, transform=always)"
    for chain in ("topk(density=0.05)", "feedback(keep=bf16) | sign", fourier, "qsgd", "none"):
        model, handle, optimizer = begun(chain, rank)
        place = str(folder / chain.split("(")[0])
        save({"thinwire": handle.state_dict()}, checkpoint_id=place)
        again, other, new = resumed(model, optimizer, chain)
        target = {"thinwire": other.state_dict()}
        load(target, checkpoint_id=place)
        other.load_state_dict(target["thinwire"])
        train(model, rank, range(3, 5), optimizer)
        train(again, rank, range(3, 5), new)
        assert torch.equal(flat(model), flat(again)), chain
        handle.close()
        other.close()


@case(2)
def memory_that_a_target_could_not_take_is_missed(rank: int, ranks: int, folder: Path) -> None:
    _, handle, _ = begun("topk(density=0.05)", rank)
    saved = handle.state_dict()
    del saved[f"rank{rank}"]["first.weight"]["residual"]
    with pytest.raises(StateError, match=r"came without residual: .* use handle\.load_distributed\(folder\)"):
        handle.load_state_dict(saved)
    handle.close()


def held(handle: thinwire.Handle, key: str) -> torch.Tensor | None:
    """What one rank has of a quantity that adds up over the ranks, for one parameter."""
    slot = handle.engine.slots["first.weight"]
    return slot.residual if key == "residual" else slot.states[0][key]


@case(4)
def another_number_of_ranks_keeps_the_sum_of_what_is_held(rank: int, ranks: int, folder: Path) -> None:
    pair = dist.new_group([0, 1])
    for chain, keys in (
        ("topk(density=0.05)", ["residual"]),
        ("dgc(density=0.05, warmup=0)", ["residual", "velocity"]),
    ):
        place = folder / chain.split("(")[0]
        if rank < 2:
            _, two, _ = begun(chain, rank, group=pair)
            full = two.full_state_dict()
            assert {"rank0", "rank1"} <= full.keys()
            torch.save(
                {"full": full, **{key: summed(held(two, key), group=pair) for key in keys}}, f"{place}-{rank}.pt"
            )
            save({"thinwire": two.state_dict()}, checkpoint_id=str(place), process_group=pair)
            two.close()
        dist.barrier()
        saved = torch.load(f"{place}-0.pt", weights_only=True)
        for way in ("file", "distributed"):
            model, four, optimizer = begun(chain, rank, steps=0)
            four.load_state_dict(saved["full"]) if way == "file" else four.load_distributed(place)
            assert four.step == 3
            for key in keys:
                assert torch.allclose(summed(held(four, key)), saved[key], rtol=1e-5, atol=1e-8)
            train(model, rank, range(3, 5), optimizer)
            totals, back = {key: summed(held(four, key)) for key in keys}, four.full_state_dict()
            four.close()
            if rank < 2:
                _, two, _ = begun(chain, rank, steps=0, group=pair)
                two.load_state_dict(back)
                for key in keys:
                    assert torch.allclose(summed(held(two, key), group=pair), totals[key], rtol=1e-5, atol=1e-8)
                two.close()


@case(4)
def a_basis_survives_another_number_of_ranks(rank: int, ranks: int, folder: Path) -> None:
    """Whatever phase its layers are in; statistics that one rank kept for all are not lost with it."""
    pair = dist.new_group([0, 1])
    for steps in (2, 3, 5):  # sampling, about to send the basis, compressing
        chain = "gradiveq(warmup=0, sample=3, reuse=9)"
        if rank < 2:
            _, two, _ = begun(chain, rank, steps=steps, group=pair)
            torch.save(two.full_state_dict(), folder / f"{steps}-{rank}.pt")
            two.close()
        dist.barrier()
        model, four, optimizer = begun(chain, rank, steps=0)
        four.load_state_dict(torch.load(folder / f"{steps}-0.pt", weights_only=True))
        train(model, rank, range(steps, 7), optimizer)
        assert_same_everywhere(flat(model))
        assert last_of(four).wire_ratio > 2
        four.close()


@case(2)
def foreign_checkpoints_change_nothing(rank: int, ranks: int, folder: Path) -> None:
    _, handle, _ = begun("topk(density=0.05)", rank)
    saved, me = handle.state_dict(), f"rank{rank}"
    before = {name: slot.residual for name, slot in handle.engine.slots.items()}
    slot = saved[me]["first.weight"]
    renamed = {("third.weight" if name == "first.weight" else name): s for name, s in saved[me].items()}
    alone = {key: value for key, value in saved.items() if key != me}
    foreign: list[tuple[Any, str]] = [
        ({}, "this is not a thinwire checkpoint: it has no 'thinwire'"),
        ({"state": 1}, "this is not a thinwire checkpoint"),
        ({**saved, "thinwire": 9}, "this checkpoint has format 9, and this thinwire reads 3"),
        ({**saved, "plan": "sign"}, r"written with the plan sign, and this run uses topk\(density=0.05\); attach with"),
        ({**saved, me: renamed}, "of another model: it has the parameter 'third.weight', which this one has not"),
        ({**saved, me: {"first.weight": slot}}, "of another model: it lacks the parameter 'second.weight'"),
        (altered(saved, me, shape=[32, 64]), r"'first.weight' has the shape \(32, 64\) there and \(64, 32\) here"),
        (altered(saved, me, residual=torch.zeros(3)), r"of 'first.weight' .* is damaged: .* \(2048,\); got .* \(3,\)"),
        (altered(saved, me, residual=3), "not the saved state of a slot: the residual must be a tensor; got int"),
        (altered(saved, me, chain="sign"), "this checkpoint sent 'first.weight' through sign, and this run through"),
        ({**saved, me: {**saved[me], "first.weight": 3}}, "the memory of 'first.weight' .* is not that of a slot"),
        (
            {**alone, f"rank{1 - rank}": saved[me]},
            rf"has the memory of ranks \[{1 - rank}\] of 2; rank {rank} of 2 needs its own; save state_dict\(\) on",
        ),
        ({**saved, "world_size": 3}, rf"has the memory of ranks \[{rank}\] of 3; rank {rank} of 2 needs that of all"),
    ]
    for checkpoint, message in foreign:
        with pytest.raises(StateError, match=message):
            handle.load_state_dict(checkpoint)
        assert handle.step == 3
        assert all(handle.engine.slots[name].residual is residual for name, residual in before.items())
    handle.close()


def altered(saved: dict[str, Any], me: str, **changes: Any) -> dict[str, Any]:
    return {**saved, me: {**saved[me], "first.weight": {**saved[me]["first.weight"], **changes}}}


@case(2)
def loops_of_ones_own_resume(rank: int, ranks: int, folder: Path) -> None:
    def go_on(model: nn.Module, state: thinwire.GradientState, steps: range) -> None:
        for step in steps:
            model.zero_grad()
            loss_of(model, rank, step).backward()
            thinwire.average_gradients(model, "topk(density=0.1) | qsgd(bits=4)", state)
            with torch.no_grad():
                for p in model.parameters():
                    assert p.grad is not None
                    p.sub_(p.grad, alpha=0.1)

    model, state = net(), thinwire.GradientState(seed=4)
    with pytest.raises(StateError, match="there is nothing to save yet"):
        state.state_dict()
    go_on(model, state, range(3))
    torch.save(state.state_dict(), folder / f"{rank}.pt")
    again, other = copy.deepcopy(model), thinwire.GradientState(seed=4)
    other.load_state_dict({"thinwire": 1})
    for _ in range(2):  # refused every time, not only once
        with pytest.raises(StateError, match="not a thinwire checkpoint"):
            go_on(again, other, range(3, 4))
    other.load_state_dict(torch.load(folder / f"{rank}.pt", weights_only=True))
    go_on(model, state, range(3, 6))
    go_on(again, other, range(3, 6))
    assert torch.equal(flat(model), flat(again))
    other.load_state_dict(torch.load(folder / f"{rank}.pt", weights_only=True))
    assert other.engine is not None
    assert other.engine.step == 3
