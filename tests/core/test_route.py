"""The route of a tensor: every choice for speed, as a table and as laws, without data."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.contract.rows import gradients
from tests.contract.test_contract import same
from thinwire import Codec, CodecError, Slot, StepInfo, simulate
from thinwire.core.context import STEADY, State
from thinwire.core.fast import BlockCoder, PartCoder
from thinwire.core.reducers import choose_reduction
from thinwire.core.route import Route, route
from thinwire.core.spec import Spec
from thinwire.core.stage import DeliveryStage, may_code
from thinwire.stages.quantise import QSGD

LONG = (1 << 20,)
MATRIX = (64, 64)
GRADIVEQ = "gradiveq(warmup=2, travel=none)"
PLAIN: dict[str, Any] = {
    "instead": None,
    "wish": None,
    "encoding": "whole",
    "keep": "nothing",
    "in_sum_space": False,
    "share": False,
}


def new_states(codec: Codec, spec: Spec, steady: bool = False) -> list[State]:
    """The states of a segment at its first step, or once its stages have started up."""
    states = [stage.init(seen) for stage, seen in zip(codec.stages, codec.specs(spec), strict=False)]
    return [state | STEADY for state in states] if steady else states


def route_of(chain: str, shape: Sequence[int], steady: bool, facts: dict[str, Any]) -> Route:
    codec, spec = Codec.parse(chain), Spec.of(tuple(shape))
    where = {name: facts[name] for name in ("device", "dtype") if name in facts}
    turn = StepInfo(**({"ranks": 4} | {name: fact for name, fact in facts.items() if name not in where}))
    return route(codec, spec, new_states(codec, spec, steady), turn, **where)


# The chain, its shape, whether its stages have started up, facts of the step -> the fields that are not those of PLAIN.
TABLE: list[tuple[str, tuple[int, ...], bool, dict[str, Any], dict[str, Any]]] = [
    # one wire coder
    ("none", LONG, False, {}, {}),
    ("qsgd", LONG, False, {}, {}),
    ("qsgd", LONG, False, {"reduction": "ring"}, {"wish": "ring"}),
    ("qsgd", LONG, False, {"dtype": torch.bfloat16}, {"share": True}),
    ("qsgd", LONG, False, {"measure": True}, {"keep": "remainder", "share": True}),
    ("feedback | qsgd", LONG, False, {}, {"keep": "remainder", "share": True}),
    ("topk(density=0.01)", LONG, False, {}, {"keep": "remainder", "share": True}),
    ("feedback(keep=off) | topk(density=0.01)", LONG, False, {}, {}),
    # blocks
    ("fftsgd(transform=always)", LONG, False, {}, {"encoding": "blocks", "keep": "remainder", "in_sum_space": True}),
    ("fftsgd(transform=always)", LONG, False, {"device": "cuda"}, {"keep": "remainder", "in_sum_space": True}),
    ("fftsgd(transform=always)", MATRIX, False, {}, {"keep": "remainder", "in_sum_space": True}),  # gathered is cheaper
    (
        "fftsgd(transform=always)",
        MATRIX,
        False,
        {"bundle_numel": 1 << 20},
        {"encoding": "blocks", "keep": "remainder", "in_sum_space": True},
    ),
    (
        "fftsgd(transform=always)",
        MATRIX,
        False,
        {"reduction": "sharded"},
        {"wish": "sharded", "encoding": "blocks", "keep": "remainder", "in_sum_space": True},
    ),
    (
        "fftsgd(transform=always)",
        LONG,
        False,
        {"reduction": "gathered"},
        {"wish": "gathered", "keep": "remainder", "in_sum_space": True},
    ),
    (
        "fftsgd(transform=always)",
        LONG,
        False,
        {"measure": True},
        {"keep": "remainder", "in_sum_space": True, "share": True},
    ),
    (
        "fftsgd(transform=always)",
        (LONG[0] + 1,),
        False,
        {},
        {"keep": "delivered", "share": True},
    ),  # the spectrum is longer
    ("feedback(keep=off) | fft | topk(density=0.1)", LONG, False, {}, {"encoding": "blocks", "in_sum_space": True}),
    ("fft", LONG, False, {}, {}),  # nothing to send before the rest is transformed
    ("fft | hadamard | topk(density=0.1)", LONG, False, {}, {"keep": "remainder", "in_sum_space": True}),
    ("fft | alq", LONG, False, {}, {"in_sum_space": True}),  # a coder must see all elements before it agrees
    # parts
    ("integers", LONG, False, {}, {"encoding": "parts"}),
    ("integers", LONG, False, {"device": "cuda"}, {"encoding": "parts"}),
    ("integers", LONG, False, {"reduction": "ring"}, {"wish": "ring", "encoding": "parts"}),
    ("importance(density=0.01)", LONG, False, {}, {"encoding": "parts", "keep": "delivered", "share": True}),
    # stages that are not ready
    (GRADIVEQ, MATRIX, False, {}, {"transforms": 0, "instead": (), "keep": "remainder", "share": True}),
    (
        "gradiveq(warmup=2, travel='qsgd(bits=8)')",
        MATRIX,
        False,
        {"reduction": "ring"},
        {"transforms": 0, "instead": (QSGD(bits=8),), "keep": "remainder", "share": True},
    ),
    (GRADIVEQ, MATRIX, True, {}, {"encoding": "parts", "keep": "delivered", "share": True}),
    (f"feedback(keep=off) | {GRADIVEQ}", MATRIX, True, {}, {"encoding": "parts"}),
    (f"{GRADIVEQ} | qsgd", MATRIX, True, {}, {"keep": "delivered", "share": True}),
    (GRADIVEQ, LONG, True, {}, {"transforms": 0, "instead": (), "keep": "remainder", "share": True}),  # no matrix
    ("powersgd(rank=2)", MATRIX, False, {}, {"keep": "delivered", "share": True}),
    ("powersgd(rank=2)", (6, 6), True, {}, {"transforms": 0, "instead": (), "keep": "remainder", "share": True}),
    ("powersgd(warmup=1)", MATRIX, False, {}, {"transforms": 0, "instead": (), "keep": "remainder", "share": True}),
    (
        "momentum(beta=0.9) | powersgd(warmup=1)",
        MATRIX,
        False,
        {},
        {"transforms": 1, "instead": (), "keep": "delivered", "share": True},
    ),
    # a delay
    ("delay(steps=3) | qsgd", LONG, False, {"step": 2}, {"instead": ()}),
    ("delay(steps=3) | qsgd", LONG, False, {"step": 3}, {}),
    (
        "delay(steps=3) | fft | topk(density=0.1)",
        LONG,
        False,
        {"step": 2, "reduction": "sharded"},
        {"transforms": 0, "instead": (), "keep": "remainder", "share": True},
    ),
    (
        "delay(steps=3) | fft | topk(density=0.1)",
        LONG,
        False,
        {"step": 3},
        {"encoding": "blocks", "keep": "remainder", "in_sum_space": True},
    ),
    # a stage that is told what was delivered
    ("dgc", LONG, False, {}, {"keep": "delivered", "share": True}),
    ("feedback(keep=off) | momentum | qsgd", LONG, False, {}, {"keep": "delivered", "share": True}),
    ("fftsgd(momentum=0.9, transform=always)", LONG, False, {}, {"keep": "delivered", "share": True}),
    (
        "delay(steps=3) | momentum | topk(density=0.1)",
        LONG,
        False,
        {"step": 1},
        {"transforms": 0, "instead": (), "keep": "delivered", "share": True},
    ),
]


@pytest.mark.parametrize(("chain", "shape", "steady", "facts", "expected"), TABLE)
def test_the_table(
    chain: str, shape: tuple[int, ...], steady: bool, facts: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = route_of(chain, shape, steady, facts)
    assert found == Route(**({"transforms": len(Codec.parse(chain).transforms)} | PLAIN | expected))


def test_the_route_follows_the_phases_of_a_learnt_basis() -> None:
    """Warm-up and sampling travel as they are; so does what is left of the residual when a basis is used up."""
    codec, slots, encodings = Codec.parse("pca(ratio=4, warmup=2, sample=4, reuse=3)"), [Slot(), Slot()], list[str]()
    phases = list[str]()
    for step in range(14):
        for slot in slots:
            slot.open(codec, MATRIX)
        found = route(codec, Spec.of(MATRIX), slots[0].states, StepInfo(ranks=2, step=step))
        assert (found.instead is None) == (found.transforms == 1) == (found.keep == "delivered")
        assert found.share
        encodings.append(found.encoding)
        phases.append("compressed" if found.instead is None else "as it is")
        slots = simulate(codec, gradients(2, MATRIX, seed=step), slots=slots, step=step).slots
    assert phases == ["as it is"] * 6 + ["compressed"] * 3 + ["as it is"] * 5
    assert encodings == ["whole"] * 6 + ["parts"] * 3 + ["whole"] * 5


SETTINGS = ["feedback(keep=fp32)", "feedback(keep=bf16)", "feedback(keep=off)", "feedback(beta=0.5)", "delay(steps=2)"]
TRANSFORMS = [
    *("fft(chunk=64)", "dct(chunk=64)", "hadamard(chunk=64)", "momentum(beta=0.9)", "sharedtopk(density=0.1)"),
    *(
        "pca(ratio=4)",
        "pca(ratio=4, travel=sign)",
        "powersgd(rank=1)",
        "powersgd(rank=1, warmup=3)",
        "integers(bits=8)",
    ),
    *("importance(density=0.1)", "randomk(density=0.1)", "fp16", "ballot"),
]
CODERS = [
    *("qsgd(bits=4)", "topk(density=0.1)", "topk(density=0.1) | rangefloat(bits=8)", "sign | huffman", "alq", "vote"),
    *("threshold(value=0.5)", "topk(density=0.2) | fp16"),
]


@st.composite
def chains(draw: st.DrawFn) -> Codec:
    settings_first = draw(st.lists(st.sampled_from(SETTINGS), max_size=2, unique_by=lambda text: text.split("(")[0]))
    transforms = draw(st.lists(st.sampled_from(TRANSFORMS), max_size=3))
    coder = draw(st.none() | st.sampled_from(CODERS))
    try:
        return Codec.parse(" | ".join([*settings_first, *transforms, *([] if coder is None else [coder])]))
    except CodecError:
        assume(False)
        raise


@st.composite
def turns(draw: st.DrawFn) -> StepInfo:
    ranks, bundle_numel = draw(st.integers(1, 9)), draw(st.sampled_from([0, 10**6]))
    return StepInfo(0, ranks, 0, draw(st.integers(0, 4)), None, bundle_numel, draw(st.booleans()))


@given(
    codec=chains(),
    shape=st.lists(st.integers(1, 64), min_size=1, max_size=3),
    steady=st.booleans(),
    turn=turns(),
    device=st.sampled_from(["cpu", "cuda"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    data=st.data(),
)
@settings(max_examples=400, deadline=None)
def test_laws_of_any_route(
    codec: Codec, shape: list[int], steady: bool, turn: StepInfo, device: str, dtype: torch.dtype, data: st.DataObject
) -> None:
    spec = Spec.of(tuple(shape))
    legal = ["sharded", "gathered", "ring"] if codec.coders else ["summed", "ring"]
    turn = StepInfo(
        0, turn.ranks, 0, turn.step, data.draw(st.none() | st.sampled_from(legal)), turn.bundle_numel, turn.measure
    )
    states = new_states(codec, spec, steady)
    before = copy.deepcopy(states)
    found = route(codec, spec, states, turn, device, dtype)
    assert same(states, before)
    assert found == route(codec, spec, states, turn, device, dtype)
    assert 0 <= found.transforms <= len(codec.transforms)
    if found.instead is None:
        assert found.transforms == len(codec.transforms)
        assert found.wish == turn.reduction
    else:
        assert all(may_code(stage) for stage in found.instead)
        assert (found.encoding, found.wish) == ("whole", None)
    if turn.step < codec.delay:
        assert (found.transforms, found.instead, found.in_sum_space) == (0, (), False)
    check_what_is_kept(found, codec, turn, dtype)
    check_encoding(found, codec, spec, turn, device)


def check_what_is_kept(found: Route, codec: Codec, turn: StepInfo, dtype: torch.dtype) -> None:
    told = any(isinstance(stage, DeliveryStage) for stage in codec.stages)
    asked = bool(codec.stages) and (turn.measure or told or codec.feedback != "off")
    assert (found.keep != "nothing") == asked
    assert found.keep == "delivered" or not told
    assert found.share or found.keep != "delivered"
    assert found.share or (dtype == torch.float32 and not turn.measure)
    # what is left of the share is the remainder, unless the remainder is one of transformed elements
    assert found.share or found.keep == "nothing" or found.in_sum_space
    assert found.keep != "delivered" or not found.in_sum_space
    assert found.keep != "remainder" or found.in_sum_space or not found.transforms


def check_encoding(found: Route, codec: Codec, spec: Spec, turn: StepInfo, device: str) -> None:
    if found.encoding == "whole":
        return
    last = codec.transforms[-1]
    fast = last.fast(codec.specs(spec)[len(codec.transforms) - 1])
    if found.encoding == "parts":
        assert isinstance(fast, PartCoder)
        assert not codec.coders
        return
    assert isinstance(fast, BlockCoder)
    assert device == "cpu"
    assert not turn.measure
    assert len(codec.transforms) == 1
    reduction = choose_reduction(codec.coders, codec.sum_spec(spec), turn.ranks, found.wish, turn.bundle_numel)
    assert reduction == "sharded"
