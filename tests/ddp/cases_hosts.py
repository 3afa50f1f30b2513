"""Ranks that share hosts: sums inside, codecs between, and state that follows the parameters a rank carries."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import thinwire
from tests.ddp.cases import assert_same_everywhere, case, ddp, flat, last_of, loss_of, net, raised, summed, train
from thinwire import CodecError, StateError, WorldError

TOPK = "topk(density=0.05)"


@case(4)
def uncompressed_it_is_ddp(rank: int, ranks: int, folder: Path) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        plain, shared = ddp(net(dtype), bucket_cap_mb=0.01), ddp(net(dtype), bucket_cap_mb=0.01)
        handle = thinwire.attach(shared, "none", local_size=2)
        for model in (plain, shared):
            loss_of(model, rank, 0, dtype).backward()
        for mine, right in zip(shared.parameters(), plain.parameters(), strict=True):
            assert mine.grad is not None
            assert right.grad is not None
            eps = torch.finfo(dtype).eps  # the order of sums differs
            torch.testing.assert_close(mine.grad, right.grad, rtol=eps, atol=2 * eps * float(right.grad.abs().max()))
        train(shared, rank, range(1, 3), dtype=dtype)
        assert_same_everywhere(flat(shared))
        assert handle.local_size == 2
        handle.close()


@case(4)
def every_codec_trains_between_hosts(rank: int, ranks: int, folder: Path) -> None:
    for chain in ("qsgd", TOPK, "powersgd(rank=2)", "gradiveq(warmup=1, sample=2, reuse=3)", "dgc(density=0.05)"):
        model = ddp(net(), bucket_cap_mb=0.01)
        handle = thinwire.attach(model, chain, local_size=2, check=1)
        train(model, rank, range(4), torch.optim.SGD(model.parameters(), lr=0.1))
        assert_same_everywhere(flat(model))
        assert handle.step == 4
        handle.close()


@case(4)
def a_host_sends_every_number_once(rank: int, ranks: int, folder: Path) -> None:
    """With 2 hosts and fp32, all ranks of a host together send each number once; inside, as an all-reduce does."""
    model = ddp(net(), bucket_cap_mb=0.01)
    handle = thinwire.attach(model, "none", local_size=2)
    train(model, rank, range(1))
    metrics = last_of(handle)
    numbers = sum(p.numel() for p in model.parameters())
    of_all: list[Any] = [None] * ranks
    dist.all_gather_object(of_all, (metrics.bytes_sent, metrics.elements, metrics.bytes_inside))
    for host in (of_all[:2], of_all[2:]):
        assert sum(elements for _, elements, _ in host) == numbers
        assert 0 <= sum(sent for sent, _, _ in host) - 4 * numbers < 64  # all-reduces round up
        assert 0 <= sum(inside for _, _, inside in host) - 8 * numbers < 200  # and the lengths
    assert of_all[0] == of_all[2]
    assert "bytes inside its host" in handle.report().caption
    handle.close()


@case(4)
def residuals_are_where_a_parameter_is_carried(rank: int, ranks: int, folder: Path) -> None:
    model = ddp(net(), bucket_cap_mb=0.01)
    handle = thinwire.attach(model, TOPK, local_size=2)
    train(model, rank, range(3))
    slots = handle.state_dict()[f"rank{rank}"]
    names: list[Any] = [None] * ranks
    dist.all_gather_object(names, set(slots))
    assert names[0] == names[2]
    assert names[1] == names[3]
    assert not names[0] & names[1]
    assert names[0] | names[1] == {"first.weight", "second.weight"}
    handle.close()


@case(4)
def a_run_goes_on_bit_for_bit(rank: int, ranks: int, folder: Path) -> None:
    whole, resumed = ddp(net(), bucket_cap_mb=0.01), ddp(net(), bucket_cap_mb=0.01)
    handle = thinwire.attach(whole, TOPK, local_size=2)
    sgd = torch.optim.SGD(whole.parameters(), lr=0.1)
    train(whole, rank, range(3), sgd)
    saved = handle.full_state_dict()
    resumed.load_state_dict(whole.state_dict())
    again = thinwire.attach(resumed, TOPK, local_size=2)
    again.load_state_dict(saved)
    train(whole, rank, range(3, 6), sgd)
    train(resumed, rank, range(3, 6), torch.optim.SGD(resumed.parameters(), lr=0.1))
    assert torch.equal(flat(whole), flat(resumed))
    handle.close()
    again.close()


@case(4)
def other_hosts_keep_the_sum_of_residuals(rank: int, ranks: int, folder: Path) -> None:
    model = ddp(net(), bucket_cap_mb=0.01)
    handle = thinwire.attach(model, TOPK, local_size=2)
    train(model, rank, range(3))
    saved = handle.full_state_dict()
    before = sum_of_residuals(handle)
    handle.close()
    flat_handle = thinwire.attach(ddp(net()), TOPK)
    flat_handle.load_state_dict(saved)
    torch.testing.assert_close(sum_of_residuals(flat_handle), before)
    again = thinwire.attach(ddp(net()), TOPK, local_size=2)
    again.load_state_dict(flat_handle.full_state_dict())
    torch.testing.assert_close(sum_of_residuals(again), before)
    own = {key: value for key, value in saved.items() if not key.startswith("rank") or key == f"rank{rank}"}
    with pytest.raises(StateError, match="needs that of all"):
        flat_handle.load_state_dict(own)
    if rank == 1:  # a damaged slot of one rank changes nothing anywhere
        saved["rank1"]["second.weight" if "second.weight" in saved["rank1"] else "first.weight"]["steps"] = 7
    with pytest.raises(StateError, match=r"disagree on the state of a parameter|memories of"):
        again.load_state_dict(saved)
    torch.testing.assert_close(sum_of_residuals(again), before)
    flat_handle.close()
    again.close()


def sum_of_residuals(handle: thinwire.Handle) -> torch.Tensor:
    slots = handle.engine.slots
    held = slots["first.weight"].residual if "first.weight" in slots else None
    return summed(held, (64 * 32,))


@case(4)
def what_is_not_finite_arrives_everywhere_and_is_skipped(rank: int, ranks: int, folder: Path) -> None:
    model = ddp(net(), bucket_cap_mb=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    handle = thinwire.attach(model, TOPK, local_size=2, scaler=scaler)
    train(model, rank, range(2))
    before = sum_of_residuals(handle)
    loss = loss_of(model, rank, 2)
    (loss * float("nan") if rank == 3 else loss).backward()
    assert all(p.grad is not None and not bool(torch.isfinite(p.grad).all()) for p in model.parameters())
    assert handle.step == 3
    torch.testing.assert_close(sum_of_residuals(handle), before)
    handle.close()


@case(4)
def hosts_are_found(rank: int, ranks: int, folder: Path) -> None:
    os.environ["GROUP_RANK"] = str(rank % 2)  # ranks 0 and 2 on one host
    try:
        model = ddp(net(), bucket_cap_mb=0.01)
        handle = thinwire.attach(model, TOPK, local_size="auto")
        train(model, rank, range(2))
        assert_same_everywhere(flat(model))
        assert handle.local_size == 2
        names: list[Any] = [None] * ranks
        dist.all_gather_object(names, set(handle.engine.slots))
        assert names[0] == names[1] != names[2]
        handle.close()
        os.environ["GROUP_RANK"] = str(min(rank, 1))
        with pytest.raises(WorldError, match=r"equally many ranks on each host; got 1 on .*, 3 on "):
            thinwire.attach(ddp(net()), TOPK, local_size="auto")
    finally:
        del os.environ["GROUP_RANK"]


@case(2)
def one_host_or_one_rank_on_each_is_said(rank: int, ranks: int, folder: Path) -> None:
    with pytest.warns(RuntimeWarning, match="local_size finds all 2 ranks on one host") as caught:
        handle = thinwire.attach(ddp(net()), "qsgd", local_size="auto")
    assert caught[0].filename == __file__
    assert handle.local_size == 1
    handle.close()
    handle = thinwire.attach(ddp(net()), "qsgd", local_size=1)
    assert handle.local_size == 1
    handle.close()


@case(3)
def sizes_that_cannot_be_are_refused(rank: int, ranks: int, folder: Path) -> None:
    for wrong, message in (
        (2, "must divide the number of ranks, which is 3; got 2"),
        (0, "'auto' or at least 1; got 0"),
    ):
        with pytest.raises(CodecError, match=message):
            thinwire.attach(ddp(net()), "qsgd", local_size=wrong)
    message = raised(lambda: thinwire.attach(ddp(net()), "qsgd", local_size=3 if rank == 2 else 1))
    assert "the ranks disagree on local_size: rank 0 has 1, rank 2 has 3" in message
