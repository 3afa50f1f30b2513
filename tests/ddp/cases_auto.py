"""`attach(model, "auto")` over Gloo; what it decides is tested without clocks in tests/planner."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import thinwire
from tests.ddp.cases import assert_same_everywhere, case, ddp, flat, net, raised, train
from thinwire.planner import auto_look, figures
from thinwire.planner.auto_steps import Timing
from thinwire.planner.choice import Choice
from thinwire.planner.predict import Prediction
from thinwire.planner.timeline import Elapsed

CHAIN = "topk(density=0.25)"
DECIDED = 9 + 8  # steps until the decision, with one trial


def measuring_always() -> Any:
    """Whatever this machine is like, codecs are measured."""
    return mock.patch.multiple(auto_look, _WORTH_MEASURING=-1.0, _WORTH_MEASURED=1e9, _WORTH_TRYING=1e9, _NEAR=1e9)


@contextmanager
def trials_of(chain: str) -> Iterator[None]:
    """Every look finds that this chain is worth a trial, and every trial that it is quicker."""
    choice = Choice(chain, thinwire.Plan.parse(chain), Prediction(chain, Elapsed(step=0.1), 1, 1, 0, 0.1, 1.0))
    found = auto_look.Findings(0.9, (choice,), "", {chain: 0.1})
    quick = mock.patch.multiple(Timing, is_less_than=lambda *_: True, is_unclear_beside=lambda *_: False)
    with mock.patch.object(auto_look.DDPLook, "end", return_value=found), quick:
        yield


@case(2)
def auto_measures_and_decides_alike(rank: int, ranks: int, folder: Path) -> None:
    model = ddp(net())
    handle = thinwire.attach(model, "auto(candidates='qsgd(bits=4); bf16')")
    with measuring_always():
        train(model, rank, range(70))  # three trials at their longest
    (decision,) = handle.decisions
    assert {"none", "qsgd(bits=4)"} <= set(decision.predicted)
    assert decision.plan == str(handle.engine.plan)
    everyone: list[Any] = [None] * ranks
    torch.distributed.all_gather_object(everyone, decision)
    assert everyone[0] == everyone[1]
    assert_same_everywhere(flat(model))
    handle.close()


@case(2)
def auto_tries_keeps_and_resumes(rank: int, ranks: int, folder: Path) -> None:
    with trials_of(CHAIN):
        whole = ddp(net())
        handle = thinwire.attach(whole, "auto")
        optimizer = train(whole, rank, range(DECIDED + 3))
        assert str(handle.engine.plan) == CHAIN
        assert handle.decisions[0].measured.keys() == {CHAIN}
        saved, weights = handle.state_dict(), {k: v.clone() for k, v in whole.module.state_dict().items()}
        moments = optimizer.state_dict()
        torch.save((saved, moments), folder / f"{rank}.pt")
        train(whole, rank, range(DECIDED + 3, DECIDED + 8), optimizer)
        handle.close()
        resumed = ddp(net())
        resumed.module.load_state_dict(weights)
        again = thinwire.attach(resumed, "auto")
        state, moments = torch.load(folder / f"{rank}.pt", weights_only=True)
        optimizer = torch.optim.SGD(resumed.parameters(), lr=0.1, momentum=0.9)
        optimizer.load_state_dict(moments)
        again.load_state_dict(state)
        assert again.decisions == handle.decisions
        train(resumed, rank, range(DECIDED + 3, DECIDED + 8), optimizer)
        assert str(again.engine.plan) == CHAIN
        assert torch.equal(flat(resumed), flat(whole))
        again.close()


@case(2)
def checkpoints_of_auto_and_of_plans_are_told_apart(rank: int, ranks: int, folder: Path) -> None:
    model = ddp(net())
    handle = thinwire.attach(model, CHAIN)
    train(model, rank, range(2))
    saved = handle.state_dict()
    handle.close()
    model = ddp(net())
    handle = thinwire.attach(model, "auto")
    assert "not chosen by auto" in raised(lambda: handle.load_state_dict(saved))
    assert str(handle.engine.plan) == "none"
    damaged = handle.state_dict() | {"auto": "{}"} if rank else handle.state_dict()
    assert "auto" in raised(lambda: handle.load_state_dict(damaged))
    handle.close()


@case(2)
def a_failure_while_measuring_leaves_the_training_plain(rank: int, ranks: int, folder: Path) -> None:
    def failing(*given: Any) -> Any:
        raise MemoryError("no memory for a sample")

    model = ddp(net())
    handle = thinwire.attach(model, "auto(candidates='bf16')")
    with measuring_always():
        if rank == 1:
            with mock.patch.object(figures, "codec_figures", failing), pytest.warns(RuntimeWarning, match="rank 1"):
                train(model, rank, range(12))
        else:
            with pytest.warns(RuntimeWarning, match="rank 1 could not measure it"):
                train(model, rank, range(12))
    assert handle.decisions[0].plan == "none"
    assert_same_everywhere(flat(model))
    handle.close()


@case(2)
def ranks_with_different_settings_are_refused(rank: int, ranks: int, folder: Path) -> None:
    said = raised(lambda: thinwire.attach(ddp(net()), "auto" if rank else "auto(quality=bold)"))
    assert "the ranks disagree on auto" in said
