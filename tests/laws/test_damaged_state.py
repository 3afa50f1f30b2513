"""Damaged checkpoints: loading raises a StateError and changes nothing, or it works and so does the next step."""

import copy
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import thinwire
from tests.contract.rows import gradients, simulate
from tests.contract.test_contract import same
from thinwire import Slot, StateError
from thinwire.core.plan import Plan
from thinwire.ddp.checkpoint_load import load_engine
from thinwire.ddp.checkpoint_save import save_engine
from thinwire.ddp.engine import Engine, NamedGradient
from thinwire.extend import InputStage
from thinwire.worlds.distributed import Distributed

SHAPE = (24, 32)
PCA = "pca(ratio=4, warmup=1, sample=3, reuse=9)"

# every stage with state, PCA in each of its phases, and residuals of each kind; the number of steps before saving
SAVED = [
    ("momentum(beta=0.9) | topk(density=0.1)", 2),
    ("importance(density=0.1, momentum=0.9, warmup=4)", 2),
    ("alq(bits=3, bucket=64, start=1)", 3),
    ("powersgd(rank=2)", 2),
    ("powersgd(rank=2, warmup=5)", 2),
    ("powersgd(rank=2, alternate=true)", 3),
    ("ef21 | topk(density=0.1)", 2),
    ("feedback(decay=0.9) | topk(density=1/16, chunk=64)", 2),
    (PCA, 1),
    (PCA, 3),
    (PCA, 4),
    (PCA, 7),
    ("pca(ratio=4, warmup=0, sample=2, reuse=2, limit=0.5)", 3),
    ("pca(ratio=4, warmup=0, sample=6, reuse=9, order=auto)", 2),
    ("pca(ratio=4, warmup=0, sample=6, reuse=9, order=auto)", 4),
    ("pca(ratio=4, warmup=0, sample=6, reuse=9, order=auto)", 8),
    ("pca(energy=0.5, warmup=0, sample=6, reuse=9, centre=false)", 4),
    ("pca(energy=0.5, warmup=0, sample=3, reuse=9, centre=false, pool=false)", 5),
    ("pca(ratio=4, warmup=0, sample=3, reuse=4)", 8),
    ("feedback(keep=bf16) | sign", 2),
    ("fft(chunk=64, auto=0.1) | topk(density=0.1)", 2),
    ("fft(chunk=64, auto=0.1) | topk(density=0.1)", 6),
    ("dct(chunk=64, auto=0.1) | topk(density=0.1)", 6),
    ("hadamard(chunk=64) | sign", 2),
    ("topk(density=1/16, warmup=3)", 2),
    ("qsgd(bits=4)", 2),
]
STATEFUL = {"alq", "dct", "ef21", "fft", "importance", "momentum", "pca", "powersgd"}

ODD: list[Any] = [
    None,
    True,
    -1,
    7,
    2**70,
    10**5000,
    0.5,
    float("nan"),
    float("inf"),
    "",
    "qsgd",
    b"x",
    [],
    [1, 2],
    {},
    {"a": 1},
    {3: 4},
    (),
    torch.zeros(3),
    torch.full(SHAPE, float("nan")),
    torch.full((SHAPE[0] * SHAPE[1],), float("inf")),
    torch.zeros(SHAPE[0] * SHAPE[1], dtype=torch.float64),
    torch.zeros(2, 2, dtype=torch.int64),
    torch.empty(0),
    torch.zeros(4, device="meta"),
    torch.eye(3).to_sparse(),
]


def paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something can be changed."""
    found = [here] if here else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += paths(inner, (*here, key))
    return found


def damaged(saved: Any, data: st.DataObject) -> Any:
    """A copy in which one or two places are changed, removed or added to."""
    saved = copy.deepcopy(saved)
    for _ in range(data.draw(st.integers(1, 2))):
        *way, last = data.draw(st.sampled_from(paths(saved)))
        at = saved
        for key in way:
            at = at[key]
        how = data.draw(st.sampled_from(["replace", "remove", "add", "number"]))
        if how == "remove":
            del at[last]
        elif how == "add" and isinstance(at, dict):
            at[data.draw(st.sampled_from(["velocity", "basis", "q", "levels", "steady", "x", 5]))] = draw_odd(data)
        elif how == "number" and isinstance(at[last], Tensor) and at[last].is_floating_point() and dense(at[last]):
            place = data.draw(st.integers(0, at[last].numel() - 1))
            at[last].view(-1)[place] = data.draw(st.sampled_from([0.0, -1.0, 3e38, float("nan"), float("-inf")]))
        elif how == "number" and isinstance(at[last], (int, float)):
            at[last] = data.draw(st.sampled_from([at[last] + 1, at[last] - 1, -at[last], at[last] * 1000]))
        else:
            at[last] = draw_odd(data)
    return saved


def dense(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.is_cpu and tensor.numel() > 0


def draw_odd(data: st.DataObject) -> Any:
    return copy.deepcopy(data.draw(st.sampled_from(ODD)))


@cache
def saved_after(row: str, steps: int) -> dict[str, Any]:
    return slots_after(row, steps, 1)[0].state_dict()


def slots_after(row: str, steps: int, ranks: int) -> list[Slot]:
    slots = None
    for step in range(steps):
        slots = simulate(row, gradients(ranks, SHAPE, seed=step), slots=slots, step=step).slots
    assert slots is not None
    return slots


QUICK = settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def test_every_stage_with_state_is_here() -> None:
    spec = thinwire.Spec.of(SHAPE)
    stages = {stage for row, _ in SAVED for stage in thinwire.Codec.parse(row).stages}
    assert {stage.name for stage in stages} >= STATEFUL
    plain = [thinwire.Codec.parse(row).stages[0] for row in ("qsgd", "sign", "topk(density=0.1)", "fft", "integers")]
    assert not any(stage.init(spec) or isinstance(stage, InputStage) for stage in plain)
    every = [stage for stage in thinwire.STAGES if issubclass(stage, thinwire.Stage)]
    checks = {s.name for s in every if s.check_state is not thinwire.Stage.check_state}
    begins = {s.name for s in every if s.init is not thinwire.Stage.init}
    local = {s.name for s in every if issubclass(s, InputStage) and s.rank_local}
    assert checks | begins | local == STATEFUL


@pytest.mark.parametrize(("row", "steps"), SAVED)
@QUICK
@given(data=st.data())
def test_a_damaged_slot_is_refused_or_works(row: str, steps: int, data: st.DataObject) -> None:
    broken = damaged(saved_after(row, steps), data)
    try:
        slot = Slot.from_state_dict(broken)
    except StateError:
        return
    if slot.chain and slot.shape == SHAPE:  # else it is the slot of something else
        outcome = simulate(slot.chain, gradients(1, SHAPE, seed=9), slots=[slot], step=steps)
        assert torch.isfinite(outcome.means[0]).all()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Distributed]:
    store = tmp_path_factory.mktemp("world") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield Distributed()
    dist.destroy_process_group()


def engine_after(row: str, steps: int, world: Distributed) -> Engine:
    engine = Engine.of(Plan.parse(row), [("weight", torch.zeros(SHAPE)), ("bias", torch.zeros(5))])
    go_on(engine, world, steps)
    return engine


def go_on(engine: Engine, world: Distributed, steps: int) -> Tensor:
    weight, bias = torch.empty(0), torch.ones(5)
    for _ in range(steps):
        weight = gradients(1, SHAPE, seed=min(engine.step, 99))[0]
        pieces = [NamedGradient("weight", weight, torch.ones(SHAPE)), NamedGradient("bias", bias, bias)]
        engine.average(pieces, world)
        engine.end_step(1, 0.0)
    return weight


@pytest.mark.parametrize(("row", "steps"), SAVED)
@settings(QUICK, max_examples=60)
@given(data=st.data())
def test_a_damaged_checkpoint_changes_nothing_or_works(
    row: str, steps: int, world: Distributed, data: st.DataObject
) -> None:
    engine = engine_after(row, steps, world)
    broken = damaged(save_engine(engine, world), data)
    if data.draw(st.booleans()):
        go_on(engine, world, 1)
    before = copy.deepcopy(save_engine(engine, world))
    try:
        load_engine(engine, world, lambda: broken)
    except StateError:
        assert same(save_engine(engine, world), before)
        return
    assert torch.isfinite(go_on(engine, world, 2)).all()


@pytest.mark.parametrize(
    ("row", "steps", "key", "value"),
    [
        ("momentum(beta=0.9) | topk(density=0.1)", 2, "velocity", torch.zeros(3)),
        ("momentum(beta=0.9) | topk(density=0.1)", 2, "velocity", torch.full((768,), float("nan"))),
        ("importance(density=0.1, momentum=0.9, warmup=4)", 2, "steps", -1),
        ("alq(bits=3, bucket=64, start=1)", 3, "levels", torch.tensor([0.0, 0.5, 0.25, 1.0])),
        ("alq(bits=3, bucket=64, start=1)", 3, "levels", torch.zeros(5)),
        ("powersgd(rank=2)", 2, "q", torch.ones(2, 32)),
        ("powersgd(rank=2)", 2, "q", torch.zeros(32, 2)),
        (PCA, 7, "basis", torch.zeros(32, 8)),
        (PCA, 7, "basis", torch.zeros(8, 32)),
        (PCA, 7, "phase", 0.0),
        (PCA, 7, "left", 0),
        (PCA, 3, "scale", 2**70),
        ("qsgd(bits=4)", 2, "anything", 1),
    ],
)
def test_what_is_wrong_is_named(row: str, steps: int, key: str, value: Any) -> None:
    slot = slots_after(row, steps, 1)[0]
    saved = slot.state_dict()
    saved["states"][0][key] = value
    with pytest.raises(StateError, match=f"this is not the saved state of a slot: .*'{key}'|levels of .* must rise"):
        Slot.from_state_dict(saved)
    slot.states[0][key] = value
    with pytest.raises(StateError, match="the slot of rank 0 is damaged"):
        simulate(row, gradients(1, SHAPE), slots=[slot], step=steps)


def test_slots_of_different_steps_are_refused() -> None:
    mixed = [slots_after(PCA, 3, 2)[0], slots_after(PCA, 4, 2)[1]]
    with pytest.raises(StateError, match="must come from the same step of the same run; those of rank 1 differ"):
        simulate(PCA, gradients(2, SHAPE), slots=mixed, step=4)
