"""The sharded sum: hop by hop or at once, it is the same sum, in messages of which no two meet at one receiver."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from tests.contract.rows import ROWS, gradients, simulate
from thinwire import Codec, Slot, StepInfo
from thinwire.core import shards
from thinwire.core.average import average
from thinwire.core.buffers import Buffers
from thinwire.core.coalesced import coalesced
from thinwire.core.context import Context
from thinwire.core.message import Link, decode_message, encode_message
from thinwire.core.ops import AllGather, AllToAll, PipelinedExchange
from thinwire.core.reducers import sharded
from thinwire.core.source import Source
from thinwire.core.spec import Spec
from thinwire.core.stage import Encoded, WireCoder
from thinwire.ddp.meter import Tally, metered
from thinwire.kernels.modes import Mode, put
from thinwire.stages.quantise import Bucketed
from thinwire.worlds.simulated import Outcome, run

WIRED = [row for row in ROWS if Codec.parse(row).coders]
QUANTISERS = [row for row in WIRED if "|" not in row and isinstance(Codec.parse(row).coders[0], Bucketed)]


def two_steps(row: str, ranks: int, shape: tuple[int, ...]) -> Outcome:
    slots = None
    for step in range(2):
        outcome = simulate(row, gradients(ranks, shape, seed=step), slots=slots, step=step, reduction="sharded")
        slots = outcome.slots
    return outcome


def assert_same(outcome: Outcome, expected: Outcome, bytes_of_each: bool = True) -> None:
    """Means, residuals and bytes of all ranks; messages of unequal length may be passed on by others than their own."""
    assert sum(outcome.sent) == sum(expected.sent)
    assert outcome.sent == expected.sent or not bytes_of_each
    for mine, theirs in zip(outcome.means, expected.means, strict=True):
        assert torch.equal(mine, theirs)
    for held, other in zip(outcome.slots, expected.slots, strict=True):
        residual, wanted = held.residual, other.residual
        assert (residual is None) == (wanted is None)
        assert residual is None or wanted is None or torch.equal(residual, wanted)


@pytest.mark.parametrize("row", WIRED)
@pytest.mark.parametrize(("ranks", "shape"), [(1, (33,)), (2, (40, 7)), (3, (1000,)), (5, (3,)), (5, (37, 11))])
def test_hops_change_nothing(row: str, ranks: int, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = two_steps(row, ranks, shape)
    monkeypatch.setattr(sharded, "LONG", 1)
    in_hops = two_steps(row, ranks, shape)
    assert_same(in_hops, at_once, Codec.parse(row).wire_bytes(shape, 4).exact)


@pytest.mark.parametrize("row", QUANTISERS)
@pytest.mark.parametrize(("ranks", "shape"), [(1, (33,)), (2, (5000,)), (3, (97, 70)), (5, (3,)), (4, (40, 130))])
def test_slices_change_nothing(row: str, ranks: int, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = two_steps(row, ranks, shape)
    monkeypatch.setattr(sharded, "LONG", 1)
    monkeypatch.setattr(shards, "SLICE", 1)
    slices = two_steps(row, ranks, shape)
    assert_same(slices, whole)


def test_very_long_messages_travel_in_slices() -> None:
    numel = 4 * 2 * (2 * shards.SLICE)  # four ranks, four bits each
    for row, given, count in (
        ("qsgd(bits=4)", 100 * numel, shards.SLICES),
        ("qsgd(bits=4)", numel, 2),
        ("qsgd(bits=4)", numel * 5 // 2, 5),
        ("qsgd(bits=4) | huffman", 4 * numel, 1),
        ("topk(density=0.9)", 4 * numel, 1),
    ):
        turn = StepInfo(0, 4, reduction="sharded")
        op = average(Codec.parse(row), torch.ones(given), Slot(), turn).send(None)
        assert isinstance(op, PipelinedExchange)
        assert len(op.items) == count


def hops(row: str, ranks: int, numel: int) -> list[list[Any]]:
    """The operations of every rank, in the order in which they are asked for."""
    asked: list[list[Any]] = [[] for _ in range(ranks)]

    def watched(rank: int) -> Any:
        rounds = average(Codec.parse(row), gradients(ranks, (numel,))[rank], Slot(), StepInfo(rank, ranks))
        reply = None
        while True:
            try:
                op = rounds.send(reply)
            except StopIteration as end:
                return end.value
            asked[rank].append(op)
            reply = yield op

    run([watched(rank) for rank in range(ranks)])
    return asked


def test_long_messages_have_a_receiver_of_their_own() -> None:
    ranks, numel = 4, 2 * sharded.LONG * 4  # four bits each
    asked = hops("qsgd(bits=4)", ranks, numel)
    assert [[type(op) for op in ops] for ops in asked] == [[PipelinedExchange]] * ranks
    exchanges = [ops[0].hops for ops in asked]
    assert [len(hops) for hops in exchanges] == [2 * (ranks - 1)] * ranks
    for hop_of_all in zip(*exchanges, strict=True):
        assert sorted(hop.to for hop in hop_of_all) == list(range(ranks))
        assert all(hop_of_all[hop.to].source == rank for rank, hop in enumerate(hop_of_all))


def test_only_a_sum_needs_what_came_before() -> None:
    (exchange,) = hops("qsgd(bits=4)", 4, 2 * sharded.LONG * 4)[0]
    assert [hop.needs for hop in exchange.hops] == [-1, -1, -1, 2, 2, 2]


def test_others_sums_may_be_taken_before_the_own_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that still sends shards may have received sums already."""
    monkeypatch.setattr(sharded, "LONG", 1)
    given, codec = gradients(2, (3000,)), Codec.parse("qsgd(bits=4)")
    expected = simulate(codec, given, reduction="sharded").means[0]
    rounds = [average(codec, given[rank], Slot(), StepInfo(rank, 2, reduction="sharded")) for rank in range(2)]
    exchanges: list[Any] = [each.send(None) for each in rounds]
    shards = [exchange.next_message(0, 0).clone() for exchange in exchanges]
    for rank, exchange in enumerate(exchanges):
        exchange.on_sent(0, 0)
        exchange.on_message(0, 0, shards[1 - rank])
    late, early = exchanges
    late.on_message(1, 0, early.next_message(1, 0).clone())
    early.on_message(1, 0, late.next_message(1, 0).clone())
    for exchange, each in zip(exchanges, rounds, strict=True):
        exchange.on_sent(1, 0)
        with pytest.raises(StopIteration) as end:
            each.send(None)
        assert torch.equal(end.value.value, expected)


def test_what_is_short_goes_along_with_what_is_long() -> None:
    for bundle_numel, in_hops in ((2 * sharded.LONG * 3, True), (0, False)):
        turn = StepInfo(0, 3, bundle_numel=bundle_numel, reduction="sharded")
        op = average(Codec.parse("qsgd(bits=4)"), torch.zeros(2000), Slot(), turn).send(None)
        assert isinstance(op, PipelinedExchange) == in_hops


def test_short_messages_go_in_two_rounds() -> None:
    assert [len(ops) for ops in hops("qsgd(bits=4)", 4, 200_000)] == [2] * 4


def test_hops_of_several_tensors_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded, "LONG", 1)
    ranks, chains, shapes = (
        3,
        ["qsgd(bucket=8)", "topk(density=0.2)", "nuqsgd(bits=3)", "qsgd | huffman", "sign"],
        [(300,), (9, 5), (700,), (64,), (3, 3)],
    )

    def rounds(rank: int) -> Any:
        turn = StepInfo(rank, ranks, 0, 0, "sharded")
        return coalesced(
            [
                average(Codec.parse(chain), gradients(ranks, shape, seed=i)[rank], Slot(), turn)
                for i, (chain, shape) in enumerate(zip(chains, shapes, strict=True))
            ]
        )

    merged, sent = run([rounds(rank) for rank in range(ranks)])
    alone = [
        simulate(chain, gradients(ranks, shape, seed=i), reduction="sharded")
        for i, (chain, shape) in enumerate(zip(chains, shapes, strict=True))
    ]
    for rank in range(ranks):
        assert sent[rank] == sum(outcome.sent[rank] for outcome in alone)
        assert all(torch.equal(merged[rank][i], outcome.means[rank]) for i, outcome in enumerate(alone))


def test_every_tensor_of_a_journey_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the meter books of each is what it sends by itself, also in slices."""
    monkeypatch.setattr(sharded, "LONG", 1)
    monkeypatch.setattr(shards, "SLICE", 1)
    ranks, shapes = 3, [(5000,), (9, 5), (700,)]
    tallies = [[Tally() for _ in shapes] for _ in range(ranks)]

    def rounds(rank: int) -> Any:
        turn = StepInfo(rank, ranks, 0, 0, "sharded")
        averages = [average(Codec.parse("qsgd"), gradients(ranks, shape)[rank], Slot(), turn) for shape in shapes]
        return coalesced([metered(a, tally, rank, ranks) for a, tally in zip(averages, tallies[rank], strict=True)])

    _, sent = run([rounds(rank) for rank in range(ranks)])
    for i, shape in enumerate(shapes):
        alone = simulate("qsgd", gradients(ranks, shape), reduction="sharded").sent
        assert [tallies[rank][i].sent for rank in range(ranks)] == alone
        assert [tallies[rank][i].received for rank in range(ranks)] == alone
    assert [sum(tally.sent for tally in own) for own in tallies] == sent


@dataclass(frozen=True, repr=False)
class Shifted(WireCoder):
    """Adds its position to every number on the way and takes it off again: what is read must know where it lies."""

    name: ClassVar[str] = "shifted"
    read: ClassVar[set[int]] = set()  # where messages began that were decoded

    def out(self, spec: Spec) -> Spec:
        return spec.numbers(spec.numel)

    def encode(self, x: Tensor, ctx: Context) -> Encoded:
        return Encoded(x + torch.arange(ctx.base, ctx.base + x.numel()))

    def decode(self, encoded: Encoded, ctx: Context, out: Tensor, mode: Mode = "write") -> None:
        self.read.add(ctx.base)
        values = encoded.values - torch.arange(ctx.base, ctx.base + out.numel())
        put(values, out, mode)


@pytest.mark.parametrize("reduction", ["sharded", "gathered", "ring"])
def test_messages_are_read_where_they_lie(reduction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [torch.arange(100.0) * rank for rank in range(4)]
    for long in (sharded.LONG, 1):
        monkeypatch.setattr(sharded, "LONG", long)
        Shifted.read.clear()
        outcome = simulate(Codec((Shifted(),)), given, reduction=reduction)
        assert Shifted.read == ({0} if reduction == "gathered" else {0, 25, 50, 75})
        assert all(torch.equal(mean, torch.arange(100.0) * 1.5) for mean in outcome.means)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3.4e38])
@pytest.mark.parametrize("chain", ["qsgd", "nuqsgd(bits=3, norm=l2)", "sign", "ternary", "alq(bits=3, start=1)"])
def test_what_is_not_finite_is_told_from_the_scales(chain: str, value: float) -> None:
    """One such number on one rank reaches all ranks; a large one is none of them."""
    given = gradients(3, (2000,))
    given[1][777] = value
    outcome = simulate(chain, given)
    alone = simulate(chain, given[1:2])  # its scale is so large that the numbers are looked at
    finite = [bool(torch.isfinite(mean).all()) for mean in [*outcome.means, *alone.means]]
    assert finite[:3] == [value == 3.4e38] * 3
    assert [slot.steps for slot in [*outcome.slots, *alone.slots]] == [int(f) for f in finite]


@pytest.mark.parametrize("chain", QUANTISERS)
def test_what_is_subtracted_is_what_is_decoded(chain: str) -> None:
    """With opposite scales, bit for bit."""
    numel = 1037
    codec, (x, y) = Codec.parse(chain), gradients(2, (numel,))
    stage, spec = codec.coders[0], Spec.of((numel,))
    ctx = Context(spec, stage.init(spec))
    message = encode_message([Link(stage, ctx)], x)
    decoded, less = torch.empty(numel), y.clone()
    decode_message([Link(stage, ctx)], message, decoded)
    decode_message([Link(stage, ctx)], message, less, "subtract")
    assert torch.equal(less, y - decoded)


@pytest.mark.parametrize("row", ["qsgd(bits=8)", "qsgd(bits=8) | huffman"])
@pytest.mark.parametrize("reduction", ["sharded", "gathered", "ring"])
def test_every_reduction_takes_the_mean(row: str, reduction: str) -> None:
    """The share of a mean is taken once, whoever divides: the encoder or the pass before it."""
    given = gradients(4, (5000,))
    wanted = torch.stack(given).mean(0)
    outcome = simulate(row, given, reduction=reduction)
    assert float((outcome.means[0] - wanted).norm() / wanted.norm()) < 0.06


def test_every_link_keeps_its_own_draws() -> None:
    """Also in the second encoding, where a chain cannot be prepared."""
    seen: list[int] = []

    @dataclass(frozen=True, repr=False)
    class Watched(WireCoder):
        name: ClassVar[str] = "watched"

        def out(self, spec: Spec) -> Spec:
            return spec

        def encode(self, x: Tensor, ctx: Context) -> Encoded:
            seen.append(ctx.stream)
            return Encoded(x)

    links = [Link(Watched(), Context(Spec(8), {}, stream=stream)) for stream in (3, 5)]
    of_ranks = shards.Shards.of(links, 8, 2, Buffers(), torch.device("cpu"))
    of_ranks.encoder(Source(torch.ones(8)))(0)
    of_ranks.encoder(Source(torch.ones(8)), salt=64)(1)
    assert seen == [3, 5, 67, 69]


def test_what_lies_on_different_devices_does_not_share_a_collective() -> None:
    here, there = torch.zeros(2), torch.zeros(2, device="meta")
    kinds: list[list[Any]] = [[AllGather([t]) for t in (here, there)], [AllToAll([[], [t]]) for t in (here, there)]]
    for first, second in kinds:

        def asking(op: Any) -> Any:
            yield op

        rounds = coalesced([asking(first), asking(second)])
        assert rounds.send(None) is first
        assert rounds.send([]) is second
