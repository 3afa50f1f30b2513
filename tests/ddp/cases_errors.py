"""What cannot work says so in a sentence, on every rank, and nothing hangs or stays behind."""

import gc
import os
import pickle
import re
import threading
import time
from datetime import timedelta
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel.distributed import DistributedDataParallel, _MixedPrecision

import thinwire
from tests.ddp.cases import case, ddp, flat, loss_of, net, raised, train
from thinwire import StateError, WorldError
from thinwire.ddp.ddp_handle import DDPHandle


@case(2)
def hook_slots_that_are_taken_are_refused(rank: int, ranks: int, folder: Path) -> None:
    model = ddp(net())
    thinwire.attach(model, "qsgd").close()
    with pytest.raises(WorldError, match=r"already taken by thinwire_hook.*call handle\.use\(\.\.\.\) on the handle"):
        thinwire.attach(model, "qsgd")
    hooked = ddp(net())
    hooked.register_comm_hook(None, allreduce_hook)
    with pytest.raises(WorldError, match=r"already taken by allreduce_hook.*build the DDP model without it"):
        thinwire.attach(hooked, "qsgd")
    mixed = ddp(net(), mixed_precision=_MixedPrecision(param_dtype=torch.bfloat16))
    with pytest.raises(WorldError, match=r"already taken by mixed_precision=.*torch\.autocast"):
        thinwire.attach(mixed, "qsgd")


@case(2)
def models_that_cannot_work_are_refused(rank: int, ranks: int, folder: Path) -> None:
    with pytest.raises(WorldError, match=r"got Net on 2 ranks\. Write model = DistributedDataParallel\(model\) first"):
        thinwire.attach(net(), "qsgd")
    compiled = ddp(net())
    compiled._use_python_reducer = True
    with pytest.raises(WorldError, match=r"leave torch\._dynamo\.config\.optimize_ddp at its default"):
        thinwire.attach(compiled, "none")
    sparse = ddp(nn.Sequential(nn.Embedding(64, 32, sparse=True)))
    with pytest.raises(WorldError, match="0 has sparse gradients, which thinwire cannot send; use sparse=False"):
        thinwire.attach(sparse, "qsgd")
    for option in ("start", "check", "lanes", "measure_every"):
        for value in (-1, 1.5, "2", True):
            with pytest.raises(thinwire.CodecError, match=rf"{option} must be a whole number of at least \d.*; got"):
                thinwire.attach(ddp(net()), "qsgd", **{option: value})  # type: ignore[arg-type]
    others = {"seed": 1.5, "headroom": "yes", "scaler": 2.0, "timeout": 60}
    for option, wrong in others.items():
        with pytest.raises(thinwire.CodecError, match=f"{option} must be .*; got "):
            thinwire.attach(ddp(net()), "qsgd", **{option: wrong})  # type: ignore[arg-type]
    with pytest.raises(thinwire.CodecError, match="known are"):
        thinwire.attach(ddp(net()), "qsdg")


@case(2)
def nothing_to_compress_is_said_loudly(rank: int, ranks: int, folder: Path) -> None:
    small = ddp(nn.Linear(8, 8))
    with pytest.warns(RuntimeWarning, match=r"will compress nothing.*plan qsgd.*small \(64 < 1024\); one-dimensional"):
        handle = thinwire.attach(small, "qsgd")
    with pytest.warns(RuntimeWarning, match="no rule matches"):
        handle.use({"fc.*": "qsgd"})
    handle.use("none")  # asked for: no warning
    handle.close()
    with pytest.warns(RuntimeWarning, match="no rule matches") as caught:
        thinwire.attach(ddp(net()), {}).close()
    assert caught[0].filename == __file__


@case(2, 3)
def ranks_that_differ_are_named(rank: int, ranks: int, folder: Path) -> None:
    last = rank == ranks - 1
    odd: list[tuple[dict[str, Any], str]] = [
        ({"plan": "sign" if last else "qsgd"}, "the ranks disagree on the plan: rank 0 has 'qsgd"),
        ({"seed": 7 if last else 8}, f"the ranks disagree on the seed: rank 0 has 8, rank {ranks - 1} has 7;"),
        ({"start": 3 if last else 0}, "the ranks disagree on start"),
        ({"check": 3 if last else 0}, "the ranks disagree on check"),
        ({"headroom": last}, "the ranks disagree on headroom"),
        ({"lanes": 3 if last else 1}, "the ranks disagree on the number of lanes"),
    ]
    for options, message in odd:
        assert message in raised(partial(thinwire.attach, ddp(net()), **{"plan": "qsgd", **options}))
    if ranks == 3:
        message = raised(lambda: thinwire.attach(ddp(net()), "qsgd", seed=0 if rank == 0 else 1))
        assert "rank 0 has 0, ranks 1, 2 have 1; start all ranks with the same code" in message
    module = nn.Sequential(nn.Linear(32, 40))
    if last:
        module.add_module("other", module[0])
        del module._modules["0"]
    message = raised(lambda: thinwire.attach(ddp(module), "qsgd"))
    assert "the ranks disagree on the parameters: rank 0 has ('0.weight', (40, 32), 'torch.float32')" in message
    state = thinwire.GradientState(seed=rank)
    own = net()
    loss_of(own, rank, 0).backward()
    assert "disagree on the seed" in raised(lambda: thinwire.average_gradients(own, "qsgd", state))


@case(2, 3)
def a_rank_with_other_results_is_found(rank: int, ranks: int, folder: Path) -> None:
    model = ddp(net(), bucket_cap_mb=0.01)
    handle = thinwire.attach(model, "qsgd(bits=4)", check=2)
    right = handle.engine.average

    def wrong(pieces: Any, world: Any, whole: Any = None) -> None:
        right(pieces, world, whole)
        for piece in pieces:
            if handle.step >= 3 and rank == 1 and piece.name == "first.bias":
                piece.gradient[0] += 1e-3

    handle.engine.average = wrong  # type: ignore[method-assign]
    train(model, rank, range(4))  # step 3 is not looked at
    message = raised(lambda: train(model, rank, range(4, 5)))
    assert f"rank {rank}: at step 4 the averaged gradients of rank 1 differ from those of rank 0" in message
    handle.close()


@case(2)
def buckets_that_ddp_hides_are_refused(rank: int, ranks: int, folder: Path) -> None:
    if "skip_all_reduce_unused_params" in signature(DistributedDataParallel).parameters:
        model = ddp(net(), find_unused_parameters=True, skip_all_reduce_unused_params=True)
        assert "leave it away" in raised(lambda: thinwire.attach(model, "qsgd"))


@case(2)
def errors_of_the_lane_surface_in_backward(rank: int, ranks: int, folder: Path) -> None:
    model = ddp(net(), bucket_cap_mb=0.01)
    handle = thinwire.attach(model, "qsgd(bits=4)")
    train(model, rank, range(2))

    def broken(*_: Any) -> None:
        raise ZeroDivisionError("of a kernel")

    handle.engine.average = broken  # type: ignore[method-assign, assignment]
    before = flat(model)
    with pytest.raises(WorldError) as caught:
        loss_of(model, rank, 2).backward()
    assert str(caught.value).startswith(f"ZeroDivisionError: of a kernel [rank {rank}, step 2, averaging ")
    assert "last.weight" in str(caught.value)
    assert caught.value.__cause__ is not None
    assert torch.equal(flat(model), before)
    handle.close()


@case(2)
def a_silent_peer_is_an_error_after_the_time_out(rank: int, ranks: int, folder: Path) -> None:
    """One rank fails by itself; the other waits no longer than it was told to."""
    model = ddp(net(), bucket_cap_mb=0.01)
    handle = thinwire.attach(model, "qsgd(bits=4)", timeout=timedelta(seconds=5))
    train(model, rank, range(2))
    if rank == 1:
        handle.engine.average = lambda *_: (_ for _ in ()).throw(MemoryError("here"))  # type: ignore[method-assign]
    began = time.monotonic()
    message = raised(lambda: loss_of(model, rank, 2).backward())
    assert time.monotonic() - began < 25  # without the option it would be 30
    if rank == 1:
        assert "MemoryError: here [rank 1, step 2, averaging " in message
    else:
        assert "rank 0 of 2: " in message
        assert re.search(r"failed; rank 1 failed \d+\.\d s before \(WorldError: MemoryError: here", message)
        assert "step 2, averaging" in message
    handle.close()


@case(3)
def ranks_that_do_not_come_to_attach_are_named(rank: int, ranks: int, folder: Path) -> None:
    """Rank 1 comes too late; then all come, and it works."""
    model = ddp(net())
    attach = partial(thinwire.attach, model, "qsgd", timeout=timedelta(seconds=8))
    if rank == 1:
        torch.distributed.barrier()  # when the others have given up
    short = partial(thinwire.attach, model, "qsgd", timeout=timedelta(seconds=1))
    message = raised(short)
    if rank == 1:
        assert "the other ranks waited 1 s for this one to come to attach, and gave up" in message
    else:
        assert f"rank {rank} of 3: rank 1 did not come to attach within 1 s; call it on all ranks" in message
        torch.distributed.barrier()
    handle = attach()
    train(model, rank, range(1))
    if rank == 0:  # a call that only this rank makes
        handle._timeout = timedelta(seconds=1)
        assert "rank 0 of 3: rank 1, 2 did not come to use within 1 s" in raised(lambda: handle.use("sign"))
    torch.distributed.barrier()
    if rank > 0:
        assert "the other ranks waited 1 s for this one to come to use" in raised(lambda: handle.use("sign"))
    train(model, rank, range(1, 2))
    handle.close()


@case(2)
def the_time_out_of_the_model_is_kept(rank: int, ranks: int, folder: Path) -> None:
    group = torch.distributed.new_group([0, 1], timeout=timedelta(seconds=77))
    handle = thinwire.attach(ddp(net(), process_group=group), "qsgd")
    assert isinstance(handle, DDPHandle)
    own = handle.hook.lanes[0].world.group
    assert own is not None
    assert own._get_backend(torch.device("cpu")).options._timeout == timedelta(seconds=77)
    handle.close()


def lanes_alive() -> int:
    return sum(thread.name == "thinwire" for thread in threading.enumerate())


@case(2)
def no_thread_stays_behind(rank: int, ranks: int, folder: Path) -> None:
    gc.collect()
    time.sleep(0.1)
    before, groups = lanes_alive(), len(torch.distributed.distributed_c10d._world.pg_map)
    model = ddp(net())
    handle = thinwire.attach(model, "qsgd")
    train(model, rank, range(2))
    assert lanes_alive() == before + 2
    handle.close()
    assert lanes_alive() == before
    assert len(torch.distributed.distributed_c10d._world.pg_map) == groups
    loss = loss_of(model, rank, 0)
    assert "this thinwire handle is closed; attach to a new DDP model" in raised(loss.backward)
    handle.close()  # closing twice is no harm
    model = ddp(net())
    handle = thinwire.attach(model, "qsgd")
    train(model, rank, range(2))
    del model, handle, loss
    gc.collect()
    limit = time.monotonic() + 5
    while time.monotonic() < limit and lanes_alive() > before:
        time.sleep(0.02)
    assert lanes_alive() == before


@case(2)
def forgotten_handles_are_given_up(rank: int, ranks: int, folder: Path) -> None:
    """However many handles a process forgets, it keeps those of a few; rank 1 forgets some of them later."""
    late: list[Any] = []
    descriptors, groups = list[int](), list[int]()
    for number in range(40):
        model = ddp(net())
        handle = thinwire.attach(model, "qsgd")
        train(model, rank, range(1))
        if rank == 1 and number < 4:
            late.append((model, handle))
        if number == 20:
            late.clear()
        del model, handle
        descriptors.append(len(os.listdir("/proc/self/fd")))
        groups.append(len(torch.distributed.distributed_c10d._world.pg_map))
    assert max(descriptors) < descriptors[0] + 100  # a handle has about ten
    assert max(groups) < groups[0] + 20  # a handle has two
    gc.collect()
    thinwire.attach(ddp(net()), "qsgd").close()
    assert len(torch.distributed.distributed_c10d._world.pg_map) < groups[0]


@case(2)
def handles_are_not_pickled(rank: int, ranks: int, folder: Path) -> None:
    handle = thinwire.attach(ddp(net()), "qsgd")
    with pytest.raises(StateError, match=r"a handle cannot be copied or pickled; save handle\.state_dict\(\)"):
        pickle.dumps(handle)
    handle.close()


@case(2)
def a_compiled_reducer_is_refused(rank: int, ranks: int, folder: Path) -> None:
    handle = thinwire.attach(ddp(net()), "qsgd")
    assert isinstance(handle, DDPHandle)
    with pytest.raises(WorldError, match=r"leave torch\._dynamo\.config\.optimize_ddp at its default"):
        handle.hook.on_bucket((torch.zeros(2), torch.zeros(2)))
    handle.close()
