"""What is walked without a network is what the other worlds send."""

from dataclasses import replace

import pytest
import torch

from tests.planner.profiles import thin
from thinwire.core.average import average
from thinwire.core.coalesced import coalesced
from thinwire.core.codec import Codec
from thinwire.core.ops import Rounds
from thinwire.core.route import StepInfo
from thinwire.core.slot import Slot
from thinwire.planner.choice import choose
from thinwire.planner.jobs import made_up, walked
from thinwire.planner.predict import predict
from thinwire.planner.sketch import sketch
from thinwire.worlds.modelled import walk
from thinwire.worlds.simulated import run

SHAPES = ((64, 32, 3, 3), (130, 70), (3000,))
EXACT = ("none", "bf16", "integers(bits=8)", "qsgd(bits=4)", "nuqsgd(bits=2)", "sign", "powersgd(rank=2)", "mx(bits=4)")
VARIABLE = (
    "topk(density=0.02) | rangefloat(bits=8) | huffman",
    "fftsgd(transform=always)",
    "scalecom(warmup=0)",
    "qsgd(bits=2) | elias",
)


def rounds_of_rank(text: str, rank: int, ranks: int, step: int) -> Rounds[list[torch.Tensor]]:
    codec, bundle = Codec.parse(text), sum(torch.Size(shape).numel() for shape in SHAPES)
    infos = StepInfo(rank, ranks, 0, step, None, bundle)
    return coalesced([average(codec, made_up(shape), Slot(), infos, made_up(shape)) for shape in SHAPES])


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("text", EXACT)
def test_bytes_are_those_of_the_simulated_world(text: str, ranks: int) -> None:
    found = walk(lambda rank: rounds_of_rank(text, rank, ranks, 0), ranks)
    _, sent = run([rounds_of_rank(text, rank, ranks, 0) for rank in range(ranks)])
    assert found.sent == sent[0]


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("text", VARIABLE)
def test_bytes_of_messages_that_vary_are_nearly_those_of_the_simulated_world(text: str, ranks: int) -> None:
    found = walk(lambda rank: rounds_of_rank(text, rank, ranks, 0), ranks)
    _, sent = run([rounds_of_rank(text, rank, ranks, 0) for rank in range(ranks)])
    assert found.sent == pytest.approx(sent[0], rel=0.1)


@pytest.mark.parametrize("ranks", [2, 4, 7])
@pytest.mark.parametrize(
    "text", [*EXACT, "hadamard | qsgd(bits=2)", "powersgd(rank=4) | qsgd(bits=8)", "fp16 | huffman"]
)
def test_a_sketch_has_the_bytes_and_rounds_of_the_walk(text: str, ranks: int) -> None:
    """Long and short tensors, and one that travels plain beside them."""
    text = str(Codec.parse(text))
    shapes = ((512, 128, 3, 3), (256, 256), (64,), (40, 30))
    texts = tuple(text if len(shape) > 1 else "none" for shape in shapes)
    made, drawn = walked(texts, shapes, ranks), sketch(texts, shapes, ranks)
    exact = all(Codec.parse(text).wire_bytes(shape, ranks).exact for shape in shapes)
    assert drawn.sent == (made.sent if exact else pytest.approx(made.sent, rel=0.1))
    assert drawn.rounds == made.rounds
    assert [(op.kind, op.overlapped) for op in drawn.operations] == [(op.kind, op.overlapped) for op in made.operations]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("text", ["none", "bf16", "qsgd(bits=4)"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_what_is_not_compressed_is_summed_in_its_own_type(dtype: str, text: str, ranks: int) -> None:
    shapes = ((300, 256), (64,), (31,))
    texts, dtypes = (text, "none", "none"), (dtype, dtype, "float32")
    made, drawn = walked(texts, shapes, ranks, dtypes), sketch(texts, shapes, ranks, dtypes)
    assert (drawn.sent, drawn.rounds) == (made.sent, made.rounds)
    assert [(op.kind, op.sent, op.overlapped) for op in drawn.operations] == [
        (op.kind, op.sent, op.overlapped) for op in made.operations
    ]


def test_a_plain_step_of_half_precision_sends_half() -> None:
    given = thin()
    layers = tuple(replace(layer, dtype="bfloat16") for layer in given.model.layers)
    half = replace(given, model=replace(given.model, layers=layers))
    assert 2 * predict(half, "none").sent == predict(given, "none").sent
    assert predict(half, "qsgd(bits=4)").sent < predict(given, "qsgd(bits=4)").sent  # vectors travel in their type
    assert choose(half).best.prediction.step <= choose(given).best.prediction.step
    assert "bf16" not in {choose(half).best.codec, *(str(r.codec) for r in choose(half).best.plan.rules)}


@pytest.mark.parametrize("ranks", [2, 5])
@pytest.mark.parametrize("text", VARIABLE)
def test_a_sketch_of_messages_that_vary_is_near_the_walk(text: str, ranks: int) -> None:
    text = str(Codec.parse(text))
    made, drawn = (found((text,) * 3, SHAPES, ranks) for found in (walked, sketch))
    assert drawn.sent == pytest.approx(made.sent, rel=0.35)
    assert drawn.rounds == made.rounds


def test_a_sketch_of_many_ranks_needs_no_data() -> None:
    """At 10,000 ranks the bytes of a shard's message are hardly any, and all of them are hardly more than among 100."""
    few, many = (sketch(("qsgd(bits=4)",), ((8192, 8192),), ranks).sent for ranks in (100, 10_000))
    assert many == pytest.approx(few, rel=0.05)


def test_rounds_are_those_of_hops() -> None:
    """Long messages go hop by hop, short ones in an all-to-all and an all-gather."""
    long, short = sketch(("qsgd(bits=8)",), ((1024, 1024),), 4), sketch(("qsgd(bits=8)",), ((200, 200),), 4)
    assert [(op.kind, op.rounds) for op in long.operations] == [("exchange", 6)]
    assert [(op.kind, op.rounds) for op in short.operations] == [("gather", 1), ("gather", 1)]
