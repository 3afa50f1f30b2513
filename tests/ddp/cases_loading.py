"""Loading: all ranks load checkpoints of one run and step, or none does; a foreign folder runs no code."""

import copy
import os
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

import thinwire
from tests.ddp.cases import assert_same_everywhere, case, flat, loss_of, net, raised, train
from tests.ddp.cases_saving import begun, slots_equal
from tests.ddp.cases_training import SYSTEMS
from thinwire import StateError, WorldError
from thinwire.ddp import arithmetic
from thinwire.kernels import native


def saved_of(handle: thinwire.Handle) -> dict[str, Any]:
    return copy.deepcopy(handle.state_dict())


def unchanged(handle: thinwire.Handle, before: dict[str, Any], load: Callable[[], Any], message: str) -> None:
    with pytest.raises(StateError, match=message):
        load()
    assert slots_equal(handle.state_dict(), before)


@case(2, 3)
def checkpoints_of_different_steps_are_refused_on_all_ranks(rank: int, ranks: int, folder: Path) -> None:
    """One rank would draw other positions, or be in another phase, than the rest."""
    for chain in ("randomk(density=0.1)", "gradiveq(warmup=0, sample=2, reuse=3)", "qsgd", "topk(density=0.1)"):
        model, handle, optimizer = begun(chain, rank, steps=2)
        early = saved_of(handle)
        train(model, rank, range(2, 5), optimizer)
        late = saved_of(handle)
        mixed = early if rank == 1 else late
        said = "disagree on the step of their checkpoints: rank 0 has 5, rank 1 has 2; load checkpoints of one run"
        unchanged(handle, late, partial(handle.load_state_dict, mixed), said)
        # the same step in one place and another in the rest: a file that was put together
        forged = {**early, "step": 5} if rank == 1 else late
        if early[f"rank{rank}"]["first.weight"]["steps"]:
            unchanged(handle, late, partial(handle.load_state_dict, forged), "disagree on the state of a parameter")
        handle.load_state_dict(early)
        assert handle.step == 2
        handle.close()


@case(2)
def checkpoints_of_different_runs_are_refused_on_all_ranks(rank: int, ranks: int, folder: Path) -> None:
    _, first, _ = begun("topk(density=0.1)", rank)
    _, second, _ = begun("topk(density=0.1)", rank)
    mixed = saved_of(first if rank == 0 else second)
    said = "disagree on the run that wrote their checkpoints: rank 0 has .*, rank 1 has"
    unchanged(first, saved_of(first), lambda: first.load_state_dict(mixed), said)
    first.close()
    second.close()


@case(2, 3)
def one_bad_checkpoint_stops_all_ranks(rank: int, ranks: int, folder: Path) -> None:
    model, handle, optimizer = begun("topk(density=0.1)", rank)
    saved = saved_of(handle)
    save({"thinwire": handle.state_dict()}, checkpoint_id=str(folder / "good"))
    train(model, rank, range(3, 5), optimizer)
    before = saved_of(handle)
    for mine, reason in ((None, "it must be a mapping"), ({**saved, "step": -1}, "'step' .* at least 0 .*; got -1")):
        bad: Any = mine if rank == 1 else saved
        told = reason if rank == 1 else f"^rank 1 cannot load its checkpoint, so no rank has loaded any: .*{reason}"
        unchanged(handle, before, partial(handle.load_state_dict, bad), told)
    place = folder / ("nothing" if rank == 1 else "good")
    told = "^the checkpoint in .*nothing cannot be read" if rank == 1 else "^rank 1 cannot load its checkpoint"
    unchanged(handle, before, lambda: handle.load_distributed(place), told)
    handle.load_distributed(folder / "good")
    assert slots_equal(handle.state_dict(), saved)
    handle.close()


@case(2)
def a_loop_of_ones_own_loads_on_all_ranks_or_none(rank: int, ranks: int, folder: Path) -> None:
    chain = "randomk(density=0.1)"

    def go_on(state: thinwire.GradientState, steps: int) -> None:
        model = net()
        for step in range(steps):
            loss_of(model, rank, step).backward()
            thinwire.average_gradients(model, chain, state)

    state = thinwire.GradientState()
    go_on(state, 2)
    early = copy.deepcopy(state.state_dict())
    go_on(state, 1)
    late = copy.deepcopy(state.state_dict())
    mixed = early if rank else late
    with pytest.raises(StateError, match="disagree on the step of their checkpoints: rank 0 has 3, rank 1 has 2"):
        state.load_state_dict(mixed)
    new = thinwire.GradientState()
    new.load_state_dict(mixed)
    with pytest.raises(StateError, match="disagree on the step of their checkpoints"):
        go_on(new, 1)
    new = thinwire.GradientState()
    if rank:
        new.load_state_dict(late)
    with pytest.raises(WorldError, match="disagree on having a checkpoint to load: rank 0 has False, rank 1 has True"):
        go_on(new, 1)


class Bomb:
    """Runs code when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.trace),)


@case(2)
def a_foreign_folder_runs_no_code(rank: int, ranks: int, folder: Path) -> None:
    _, handle, _ = begun("topk(density=0.1)", rank)
    before, trace = saved_of(handle), folder / "trace"
    state = handle.state_dict()
    save({"thinwire": {**state, "dial": Bomb(trace)}}, checkpoint_id=str(folder / "value"))
    save({"thinwire": state}, checkpoint_id=str(folder / "metadata"))
    save({"thinwire": state}, checkpoint_id=str(folder / "outside"))
    if rank == 0:
        place = folder / "metadata" / ".metadata"
        place.write_bytes(pickle.dumps([Bomb(trace), pickle.loads(place.read_bytes())]))
        place = folder / "outside" / ".metadata"
        metadata = pickle.loads(place.read_bytes())
        for stored in metadata.storage_data.values():
            stored.relative_path = "../value/" + stored.relative_path
        place.write_bytes(pickle.dumps(metadata))
    dist.barrier()
    for name, said in (
        ("value", "dial|Unsupported|Weights"),
        ("metadata", r"metadata asks for \w+\.mkdir"),
        ("outside", "outside of it"),
    ):
        unchanged(handle, before, partial(handle.load_distributed, folder / name), said)
        assert not trace.exists()
    handle.close()


@case(2)
def one_file_of_rank_0_restores_all_ranks(rank: int, ranks: int, folder: Path) -> None:
    """As Accelerate, Lightning and Fabric do: all ranks ask, rank 0 writes, all ranks load that file."""
    for number, chain in enumerate(["topk(density=0.05)", *SYSTEMS]):
        model, handle, optimizer = begun(chain, rank)
        state = handle.stateful().state_dict()
        if rank == 0:
            torch.save(state, folder / f"{number}.pt")
        before = saved_of(handle)
        train(model, rank, range(3, 5), optimizer)
        dist.barrier()
        handle.stateful().load_state_dict(torch.load(folder / f"{number}.pt", weights_only=True))
        assert slots_equal(handle.state_dict(), before)
        # torch.distributed.checkpoint asks every rank, too, and loads in place what has the same keys
        place = str(folder / str(number))
        save({"thinwire": handle.stateful()}, checkpoint_id=place)
        train(model, rank, range(3, 4), optimizer)
        handle.load_distributed(place)
        assert slots_equal(handle.state_dict(), before)
        load({"thinwire": handle.stateful()}, checkpoint_id=place)
        assert slots_equal(handle.state_dict(), before)
        handle.close()


@case(2, 3)
def a_rank_that_saves_alone_gets_an_error_in_time(rank: int, ranks: int, folder: Path) -> None:
    model, handle, optimizer = begun("topk(density=0.05)", rank)
    whole = handle.stateful(timeout=timedelta(seconds=1))
    for _ in range(2):
        if rank == 0:
            absent = ", ".join(map(str, range(1, ranks)))
            with pytest.raises(WorldError, match=f"rank {absent} did not come to full_state_dict.* within 1 s"):
                whole.state_dict()
        dist.barrier()
    if rank:  # and whoever comes too late hears of it at once, twice as rank 0 did
        for _ in range(2):
            assert "waited 1 s for this one" in raised(lambda: handle.full_state_dict(timedelta(minutes=5)))
    for step in range(3, 5):
        assert {"rank0", "rank1"} <= handle.stateful().state_dict().keys()
        assert {"rank0", "rank1"} <= handle.full_state_dict().keys()
        train(model, rank, range(step, step + 1), optimizer)
    handle.close()


def resumes_equally(chain: str, rank: int, first: int, **options: Any) -> bool:
    """Whether a run that takes `first` steps with any data and then loads goes on as the one that wrote did."""
    model, handle, optimizer = begun(chain, rank, steps=4, **options)
    saved = saved_of(handle)
    weights, momenta = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    again, other, new = begun(chain, rank, steps=first, **options)
    again.load_state_dict(weights)
    new.load_state_dict(momenta)
    other.load_state_dict(saved)
    train(model, rank, range(4, 9), optimizer)
    train(again, rank, range(4, 9), new)
    equal = torch.equal(flat(model), flat(again)) and slots_equal(handle.state_dict(), other.state_dict())
    handle.close()
    other.close()
    return equal


@case(3, 4)
def resumed_training_is_equal_if_ddp_has_formed_its_buckets(rank: int, ranks: int, folder: Path) -> None:
    """Sums of more than two numbers depend on the buckets, and DDP forms others for its first step."""
    for chain in ("none", "qsgd", "topk(density=0.1)", "powersgd(rank=2)", "gradiveq(warmup=0, sample=2, reuse=9)"):
        assert resumes_equally(chain, rank, first=1), chain
    assert resumes_equally("qsgd", rank, first=0, find_unused_parameters=True)


@case(2, 3)
def a_rank_without_compiled_kernels_gets_the_same_numbers(rank: int, ranks: int, folder: Path) -> None:
    compiled = native.NATIVE
    assert compiled is not None
    for chain in ("gradiveq(warmup=0, sample=2, reuse=30)", "powersgd(rank=2)", "powersgd(rank=4) | qsgd"):
        native.NATIVE = None if rank == 1 else compiled
        try:
            model, handle, _ = begun(chain, rank, steps=25)
        finally:
            native.NATIVE = compiled
        assert_same_everywhere(flat(model))
        handle.close()


@case(2)
def ranks_that_may_compute_other_bits_are_told(rank: int, ranks: int, folder: Path) -> None:
    """Only for chains with matrix products in their decoders, and on the first rank."""
    truth = arithmetic.processor
    arithmetic.processor = lambda: f"processor of rank {rank}"
    said = "disagree on the processor: rank 0 has 'processor of rank 0', rank 1 has .*; powersgd decodes with matrix"
    try:
        with pytest.warns(RuntimeWarning, match=said) if rank == 0 else nullcontext():
            _, handle, _ = begun("powersgd(rank=2)", rank, steps=0)
        handle.use("qsgd")  # a warning would be an error
        with pytest.warns(RuntimeWarning, match=said) if rank == 0 else nullcontext():
            handle.use("powersgd(rank=3)")
        handle.close()
        model = net()
        loss_of(model, rank, 0).backward()
        with pytest.warns(RuntimeWarning, match=said) if rank == 0 else nullcontext():
            thinwire.average_gradients(model, "powersgd(rank=2)", thinwire.GradientState())
    finally:
        arithmetic.processor = truth
