"""Damaged frames, absurd lengths and messages that cannot be decoded are errors that name the rank that sent them."""

import struct
import zlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import thinwire
from tests.distributed.connected import close, connect_all, on_all
from tests.distributed.processes import run_ranks
from tests.distributed.test_exchange import Numbers, exchange_of
from thinwire import Context, Encoded
from thinwire.core.buffers import Buffers
from thinwire.core.ops import LONGEST, AllGather, AllToAll, PipelinedExchange, SendRecv, longest_message
from thinwire.core.reducers import sharded
from thinwire.kernels import checksum, coders
from thinwire.stages.sparsify import TopK
from thinwire.worlds.distributed import Distributed
from thinwire.worlds.tcp.connections import Connection
from thinwire.worlds.tcp.exchange import Exchange
from thinwire.worlds.tcp.frames import header_bytes, header_size, read_header
from thinwire.worlds.tcp.relay import Relay

ITEMS = [torch.arange(10, dtype=torch.uint8), torch.empty(0, dtype=torch.uint8), torch.full((300,), 7).byte()]
IDENTITY = (5, 1, 2)


def test_a_header_says_what_the_documentation_says() -> None:
    words = [*IDENTITY, 10, 0, 300, zlib.crc32(torch.cat(ITEMS).numpy().tobytes())]
    packed = struct.pack("<7I", *words)
    assert header_bytes(IDENTITY, ITEMS) == packed + struct.pack("<I", zlib.crc32(packed))
    assert len(packed) + 4 == header_size(IDENTITY, 3)


def test_every_flipped_bit_of_a_header_is_found() -> None:
    header = bytearray(header_bytes(IDENTITY, ITEMS))
    assert read_header(header, IDENTITY, None, [LONGEST] * 3, 4).lengths == [10, 0, 300]
    for bit in range(8 * len(header)):
        header[bit // 8] ^= 1 << bit % 8
        with pytest.raises(thinwire.WireError, match="rank 4 sent a header that is damaged"):
            read_header(header, IDENTITY, None, [LONGEST] * 3, 4)
        header[bit // 8] ^= 1 << bit % 8


def test_damaged_items_are_refused() -> None:
    header = read_header(bytearray(header_bytes(IDENTITY, ITEMS)), IDENTITY, None, [LONGEST] * 3, 4)
    header.check_items(ITEMS, 4)
    wrong = [ITEMS[0], ITEMS[1], ITEMS[2].clone()]
    wrong[2][299] ^= 1
    with pytest.raises(thinwire.WireError, match="a message of rank 4 arrived damaged: its checksum differs"):
        header.check_items(wrong, 4)


def damage(connection: Connection) -> None:
    """Flip one bit of the last part of each frame that is sent, after its checksum was computed."""
    queue = connection.queue

    def damaged(parts: Sequence[memoryview]) -> None:
        last = bytearray(parts[-1])
        last[-1] ^= 16
        queue([*parts[:-1], memoryview(last)])

    connection.queue = damaged  # type: ignore[method-assign]


def error_of(call: Any) -> str:
    with pytest.raises(thinwire.ThinwireError) as failure:
        call()
    return f"{type(failure.value).__name__}: {failure.value}"


@pytest.mark.timeout(60)
def test_a_damaged_frame_of_an_exchange_is_refused_before_it_is_used() -> None:
    both = connect_all(2)
    damage(both[1][0])

    def body(rank: int) -> str:
        exchange = exchange_of(rank, both[rank], timeout=2.0)
        error = error_of(exchange.run)  # rank 1 waits for the sum that rank 0 does not send
        assert not isinstance(exchange.op.items[0], Numbers) or rank == 1 or not exchange.op.items[0].received
        return error

    error = on_all(2, body)[0]
    close(both)
    assert error.startswith("WireError: a message of rank 1 arrived damaged")


@pytest.mark.timeout(60)
def test_items_that_are_damaged_in_a_relay_are_refused_by_all_behind_the_damage() -> None:
    """Rank 1 damages what it sends to rank 2, which forwards it to rank 0."""
    all_connections = connect_all(3)
    damage(all_connections[1][2])

    def body(rank: int) -> str:
        relay = Relay(rank, all_connections[rank], 1, Buffers(), 20.0)
        if rank == 1:
            return str(len(relay.run([torch.full((5,), rank).byte()], 5)))
        return error_of(lambda: relay.run([torch.full((5,), rank).byte()], 5))

    results = on_all(3, body)
    close(all_connections)
    assert results[1] == "3"
    for rank in (0, 2):
        assert results[rank].startswith("WireError: a message of rank 1 arrived damaged")


@pytest.mark.timeout(60)
def test_an_absurd_length_is_refused_before_memory_is_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    both = connect_all(2)
    reserved: list[int] = []
    empty = Buffers.empty

    def noted(self: Buffers, numel: int, *args: Any) -> Tensor:
        reserved.append(numel)
        return empty(self, numel, *args)

    monkeypatch.setattr(Buffers, "empty", noted)
    words = struct.pack("<5I", 1, 0, 0, 2**31 - 1, 0)
    both[1][0].socket.sendall(words + struct.pack("<I", zlib.crc32(words)))
    hops = list(sharded.hops_of(0, 2))
    item = Numbers(0, 100, hops, exact=False)
    item.longest = longest_message(100)
    exchange = Exchange(PipelinedExchange(hops, [item], torch.device("cpu")), both[0], 1, Buffers(), 20.0)
    error = error_of(exchange.run)
    assert error.startswith("WireError: rank 1 announced a message of 2147483647 bytes, where 0 to 68736 are possible;")
    words = struct.pack("<4I", 1, 1, 69_000, 0)
    fresh = connect_all(2)
    fresh[1][0].socket.sendall(words + struct.pack("<I", zlib.crc32(words)))
    relay = Relay(0, fresh[0], 1, Buffers(), 20.0)
    error = error_of(lambda: relay.run([torch.zeros(10).byte()], longest_message(100)))
    assert error.startswith("WireError: rank 1 announced a message of 69000 bytes, where 0 to 68736 are possible;")
    assert all(numel < 10_000 for numel in reserved)
    close([*both, *fresh])


class Damaged(TopK):
    """Rank 1 sends messages whose positions end too early."""

    def encode(self, x: Tensor, ctx: Context) -> Encoded:
        values, side = super().encode(x, ctx)
        return Encoded(values, side[:-1] if ctx.rank == 1 and side is not None else side)


@pytest.mark.parametrize("reduction", ["sharded", "gathered", "ring"])
@pytest.mark.parametrize("long", [False, True])
def test_the_sender_of_what_cannot_be_decoded_is_named(
    reduction: str, long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharded, "LONG", 1 if long else 1 << 30)
    gradients = [torch.randn(999, generator=torch.Generator().manual_seed(rank)) for rank in range(3)]
    with pytest.raises(thinwire.WireError, match=r"the message of rank 1 cannot be decoded: .*[a-z]") as failure:
        thinwire.simulate(Damaged(density=0.1), gradients, reduction=reduction)
    assert isinstance(failure.value.__cause__, thinwire.WireError)


@pytest.mark.parametrize("chain", ["sharedtopk(density=0.1)", "iwp"])
def test_the_sender_of_positions_that_cannot_be_decoded_is_named(chain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = coders.pack_indices
    monkeypatch.setattr(coders, "pack_indices", lambda *args: pack(*args)[:-1])
    gradients = [torch.randn(9999, generator=torch.Generator().manual_seed(rank)) for rank in range(3)]
    with pytest.raises(thinwire.WireError, match=r"the message of rank [012] cannot be decoded: "):
        thinwire.simulate(chain, gradients, weights=torch.randn(9999))


def announces_too_much(rank: int, ranks: int) -> list[str]:
    """Rank 1 sends more bytes than the others think possible, in every operation that tells lengths over Gloo."""
    length = 5000 if rank == 1 else 5
    item = torch.zeros(length, dtype=torch.uint8)
    hops = list(sharded.hops_of(rank, ranks))
    hops_item = Numbers(rank, length, hops, exact=False)
    hops_item.longest = 100
    ops: list[Any] = [
        AllGather([item], False, 100),
        AllToAll([[item] for _ in range(ranks)], False, 100),
        SendRecv([item], 1 - rank, 1 - rank, None, longest=100),
        PipelinedExchange(hops, [hops_item], torch.device("cpu")),
    ]
    errors = []
    for op in ops:
        world = Distributed(dist.new_group([0, 1], timeout=timedelta(seconds=2)))
        world._tcp_devices = set()  # as on backends without TCP connections
        errors.append(error_of(lambda: world.perform(op)))  # noqa: B023
    return errors


@pytest.mark.distributed
@pytest.mark.timeout(90)
def test_an_absurd_length_over_gloo_names_its_sender() -> None:
    errors = run_ranks(2, announces_too_much, seconds=80)
    for message in errors[0]:
        assert message.startswith("WireError: rank 1 announced a message of 50")
        assert "where 0 to 100 are possible" in message


def averages_on_unequal_machines(rank: int, ranks: int) -> Any:
    """Rank 1 has no compiled checksum."""
    sharded.LONG = 1
    if rank == 1:
        checksum._COMPILED = None
    x = torch.full((4000,), float(rank))
    means = [thinwire.average(x, chain, reduction="sharded") for chain in ("qsgd(bits=8)", "topk(density=0.5)")]
    return [mean.numpy() for mean in means]


@pytest.mark.distributed
@pytest.mark.timeout(90)
def test_ranks_with_and_without_compiled_checksums_work_together() -> None:
    first, second = run_ranks(2, averages_on_unequal_machines, seconds=80)
    assert all((a == b).all() for a, b in zip(first, second, strict=True))
    assert abs(first[0] - 0.5).max() < 0.01
