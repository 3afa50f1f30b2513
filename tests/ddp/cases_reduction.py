"""The ring that a caller asks for: the same averages as the all-reduce, sent as the ring sends them."""

from pathlib import Path

import pytest
import torch

import thinwire
from tests.ddp.cases import assert_same_everywhere, case, ddp, flat, last_of, loss_of, net, train
from thinwire import CodecError

GRADIVEQ = "gradiveq(ratio=4, warmup=1, sample=2, reuse=5)"
CHAINS = (GRADIVEQ, "powersgd(rank=2)", "integers(bits=8)", "none")


@case(2, 3, 4)
def a_ring_averages_what_the_all_reduce_averages(rank: int, ranks: int, folder: Path) -> None:
    for chain in CHAINS:
        trained, sent = [], []
        for reduction in (None, "ring"):
            model = ddp(net(), bucket_cap_mb=0.01)
            handle = thinwire.attach(model, chain, check=1, reduction=reduction)
            train(model, rank, range(6))
            assert_same_everywhere(flat(model))
            trained.append(flat(model))
            sent.append(last_of(handle).rounds)
            handle.close()
        torch.testing.assert_close(*trained, rtol=1e-3, atol=1e-4)
        assert chain != GRADIVEQ or sent[1] - sent[0] >= 2 * (ranks - 1) - 1  # hops in place of one collective


@case(2, 3)
def a_loop_of_ones_own_takes_the_ring_too(rank: int, ranks: int, folder: Path) -> None:
    means = []
    for reduction in (None, "ring"):
        model, state = net(), thinwire.GradientState(seed=3)
        for step in range(6):
            model.zero_grad()
            loss_of(model, rank, step).backward()
            thinwire.average_gradients(model, GRADIVEQ, state, reduction=reduction)
        means.append(torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]))
    torch.testing.assert_close(*means, rtol=1e-3, atol=1e-5)
    model.zero_grad()
    loss_of(model, rank, 6).backward()
    thinwire.average_gradients(model, GRADIVEQ, state)  # back to the all-reduce, with the same basis
    assert state.engine is not None
    assert state.engine.reduction is None
    assert_same_everywhere(torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]))


@case(2)
def what_cannot_go_round_is_refused_before_anything_changes(rank: int, ranks: int, folder: Path) -> None:
    model = ddp(net())
    with pytest.raises(CodecError, match=r"what qsgd sends cannot be summed; use a chain of transforms"):
        thinwire.attach(model, "qsgd(bits=4)", reduction="ring")
    with pytest.raises(CodecError, match=r"reduction must be 'ring', or None.*got 'tree'"):
        thinwire.attach(model, GRADIVEQ, reduction="tree")
    handle = thinwire.attach(model, GRADIVEQ, reduction="ring")
    with pytest.raises(CodecError, match="cannot be summed"):
        handle.use("gradiveq | qsgd(bits=4)")
    assert str(handle.plan[0].codec).startswith("pca(ratio=4")
    handle.close()


@case(2)
def ranks_that_ask_for_different_reductions_are_told(rank: int, ranks: int, folder: Path) -> None:
    with pytest.raises(thinwire.WorldError, match="the reduction"):
        thinwire.attach(ddp(net()), GRADIVEQ, reduction="ring" if rank else None)
