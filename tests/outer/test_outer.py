"""Outer steps over Gloo, all cases in one launch; and the laws of fragments."""

import os
import signal
import traceback
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import thinwire
from tests.ddp.cases import flat, net, raised, train
from tests.distributed.processes import run_ranks
from tests.outer.cases_inside import INSIDE
from tests.outer.cases_loops import LOOPS
from tests.outer.cases_outer import CASES
from thinwire.outer.fragments import split

# Starting processes takes seconds, and a case a fraction of one: all cases of a number of ranks share a launch.
BY_RANKS = {2: (*CASES, *LOOPS), 3: CASES, 4: INSIDE}


def run_all(rank: int, ranks: int) -> dict[str, str]:
    outcomes = {}
    for function in BY_RANKS[ranks]:
        torch.manual_seed(0)
        try:
            function(rank, ranks)
            outcomes[function.__name__] = ""
        except BaseException:
            outcomes[function.__name__] = traceback.format_exc()
        dist.barrier()
    return outcomes


@cache
def outcomes(ranks: int) -> list[dict[str, str]]:
    return run_ranks(ranks, run_all, seconds=200)


@pytest.mark.distributed
@pytest.mark.timeout(250)
@pytest.mark.parametrize(("ranks", "name"), [(n, case.__name__) for n, cases in BY_RANKS.items() for case in cases])
def test_case(ranks: int, name: str) -> None:
    failures = {rank: told[name] for rank, told in enumerate(outcomes(ranks)) if told[name]}
    assert not failures, "\n".join(f"rank {rank}:\n{text}" for rank, text in failures.items())


OPTIONS: dict[str, Any] = {"every": 2, "overlap": 1, "timeout": timedelta(seconds=4)}


def train_twice(rank: int, ranks: int, folder: str) -> tuple[list[float], list[float]]:
    """The weights after step 6, of a run from the start and of one from the files of step 3."""
    ends = []
    for resumed in (False, True):
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        handle = thinwire.attach_outer(model, optimizer, "topk(density=0.1)", **OPTIONS)
        if resumed:
            saved = torch.load(f"{folder}/{rank}.pt", weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            handle.load_state_dict(saved["outer"])
        train(model, rank, range(handle.step, 6), optimizer)
        handle.close()
        ends.append(flat(model).tolist())
    return ends[0], ends[1]


def save_and_lose_the_last_rank(rank: int, ranks: int, folder: str) -> str:
    """Save after step 3; the last rank is killed in the round of step 4."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    handle = thinwire.attach_outer(model, optimizer, "topk(density=0.1)", **OPTIONS)
    train(model, rank, range(3), optimizer)
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "outer": handle.state_dict()}
    torch.save(saved, f"{folder}/{rank}.pt")
    dist.barrier()
    if rank == ranks - 1:
        handle.engine.average = lambda *given: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    return raised(lambda: train(model, rank, range(3, 6), optimizer))


@pytest.mark.distributed
@pytest.mark.timeout(200)
def test_a_rank_killed_in_a_round_is_named_and_the_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    for rank, said in enumerate(run_ranks(3, save_and_lose_the_last_rank, str(tmp_path), dying=1)):
        assert said.startswith(f"WorldError: rank {rank} of 3: "), said
        assert "rank 2 is gone" in said
    for undisturbed, resumed in run_ranks(3, train_twice, str(tmp_path)):
        assert resumed == undisturbed


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30), st.integers(1, 8), st.booleans())
def test_fragments_cover_every_parameter_once(sizes: list[int], parts: int, numbered: bool) -> None:
    names = [(f"layer.{at // 2}.{at}" if numbered else f"layer{at // 2}.p{at}", size) for at, size in enumerate(sizes)]
    if parts > len(sizes):
        with pytest.raises(thinwire.CodecError, match="fragments="):
            split(names, parts)
        return
    found = split(names, parts)
    assert [at for part in found for at in part] == list(range(len(sizes)))
    assert len(found) == parts
    assert all(found)


@given(st.integers(1, 8), st.integers(1, 5))
def test_equal_layers_make_equal_fragments(parts: int, each: int) -> None:
    found = split([(f"h.{at}.weight", 10) for at in range(parts * each)], parts)
    assert [len(part) for part in found] == [each] * parts


@given(st.integers(1, 40), st.data())
def test_every_fragment_is_sent_once_in_a_round(every: int, data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, every))
    settings = thinwire.OuterSettings(every=every, fragments=parts)
    steps = [[step for step in range(1, every + 1) if settings.sends(step, f)] for f in range(parts)]
    assert all(len(each) == 1 for each in steps)
    assert len({each[0] for each in steps}) == parts
    assert steps[-1] == [every]
