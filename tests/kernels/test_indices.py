import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.damage import agree, damaged
from thinwire.errors import CodecError, WireError
from thinwire.kernels import coders
from thinwire.kernels.reference import indices as reference

LENGTHS = [*range(40), 63, 64, 65, 127, 128, 255, 256, 257, 1000, 1024, 1099, 1100]
DENSITIES = [0.0, 0.001, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0]


def support(n: int, density: float, seed: int) -> Tensor:
    return (torch.rand(n, generator=torch.Generator().manual_seed(seed)) < density).nonzero().view(-1)


def clustered(n: int, seed: int) -> Tensor:
    rows = support(-(-n // 50), 0.05, seed)
    positions = (rows.view(-1, 1) * 50 + torch.arange(50)).view(-1)
    return positions[positions < n]


def read_both(message: Tensor, n: int) -> Tensor:
    native, python = coders.unpack_indices(message, n), reference.unpack_indices(message, n)
    assert torch.equal(native, python)
    return native


@pytest.mark.parametrize("n", LENGTHS)
def test_native_writes_the_bytes_of_the_reference(n: int) -> None:
    for positions in [support(n, density, n) for density in DENSITIES] + [clustered(n, n)]:
        message = coders.pack_indices(positions, n)
        assert torch.equal(message, reference.pack_indices(positions, n))
        assert torch.equal(read_both(message, n), positions)
        assert message.numel() <= coders.packed_indices_bound(n, positions.numel())


@given(st.sets(st.integers(0, 2**32 - 2), max_size=60), st.integers(0, 2**32 - 1))
def test_any_support_survives(chosen: set[int], spare: int) -> None:
    numel = min(max(chosen, default=0) + 1 + spare, 2**32 - 1)
    positions = torch.tensor(sorted(chosen), dtype=torch.int64)
    if len(chosen) * 32 > numel // 100:  # the reference spells a bitmap bit by bit
        numel = max(numel, 6400)
    message = coders.pack_indices(positions, numel)
    assert torch.equal(coders.unpack_indices(message, numel, len(chosen)), positions)
    if numel < 10_000_000:
        assert torch.equal(reference.pack_indices(positions, numel), message)


def test_golden_bytes() -> None:
    assert coders.pack_indices(torch.tensor([0, 9]), 12).tolist() == [0, 0b1, 0b10]
    assert coders.pack_indices(torch.tensor([258]), 1000).tolist() == [1, 2, 1, 0, 0]
    spread = torch.arange(0, 1000, 50)  # skips 0, then 49 each time: k = 5, 49 = 1 * 32 + 17
    message = coders.pack_indices(spread, 1000).tolist()
    assert message[:6] == [2, 5, 20, 0, 0, 0]
    stream = "".join(f"{byte:08b}"[::-1] for byte in message[6:])
    assert stream == ("1" + "00000" + ("01" + "10001") * 19).ljust(len(stream), "0")


@pytest.mark.parametrize(
    ("tag", "positions", "n"),
    [(0, support(5000, 0.4, 1), 5000), (1, torch.tensor([7]), 5000), (2, support(5000, 0.02, 1), 5000)],
)
def test_each_form_is_chosen_where_it_is_smallest(tag: int, positions: Tensor, n: int) -> None:
    assert int(coders.pack_indices(positions, n)[0]) == tag


@pytest.mark.parametrize("density", [1 / 4096, 1 / 64, 0.1, 0.5])
def test_expected_size_is_the_mean(density: float) -> None:
    n = 1 << 16
    count = int(n * density)
    g = torch.Generator().manual_seed(2)
    sizes = [coders.pack_indices(torch.randperm(n, generator=g)[:count].sort().values, n).numel() for _ in range(20)]
    assert sum(sizes) / 20 == pytest.approx(coders.expected_indices_size(n, count), rel=0.01)


def test_rice_is_close_to_the_entropy() -> None:
    n, count = 1 << 20, 1 << 14
    assert coders.expected_indices_size(n, count) * 8 / count == pytest.approx(7.53, abs=0.01)
    message = coders.pack_indices(
        torch.randperm(n, generator=torch.Generator().manual_seed(3))[:count].sort().values, n
    )
    assert message.numel() * 8 / n < 0.116 * 1.02


@pytest.mark.parametrize(
    "positions", [clustered(100_000, 4), support(100_000, 0.01, 5), support(100_000, 0.1, 5) // 9 * 9]
)
def test_no_rice_parameter_is_better(positions: Tensor) -> None:
    positions = positions.unique()
    skipped = positions.diff(prepend=torch.tensor([-1])) - 1
    sizes = [6 + (int((skipped >> k).sum()) + positions.numel() * (k + 1) + 7) // 8 for k in range(32)]
    message = coders.pack_indices(positions, 100_000)
    assert int(message[0]) == reference.RICE
    assert message.numel() == min(sizes)


def test_largest_gaps_survive() -> None:
    n = 2**32 - 1
    for chosen in ([n - 1], [0, n - 1], [5, 6, 7, 8, 9, n - 2, n - 1]):
        message = coders.pack_indices(torch.tensor(chosen), n)
        assert read_both(message, n).tolist() == chosen


@pytest.mark.parametrize("positions", [[1, 0], [1, 1], [-1, 0], [0, 10], [10]])
def test_what_is_no_support_is_refused(positions: list[int]) -> None:
    for pack in (coders.pack_indices, reference.pack_indices):
        with pytest.raises(CodecError, match="ascending"):
            pack(torch.tensor(positions), 10)


def test_too_many_elements_are_refused() -> None:
    with pytest.raises(CodecError, match="split"):
        coders.pack_indices(torch.tensor([0]), 2**32)


@pytest.mark.parametrize(
    "message",
    [
        [],
        [3],
        [0, 1],
        [0, 1, 0b10000],
        [1, 1, 0, 0],
        [1, 5, 0, 0, 0, 5, 0, 0, 0],
        [1, 12, 0, 0, 0],
        [2, 0, 1, 0, 0],
        [2, 32, 1, 0, 0, 0, 1, 0, 0, 0, 0],
        [2, 0, 1, 0, 0, 0],
        [2, 0, 255, 255, 255, 255, 1],
        [2, 0, 1, 0, 0, 0, 0],
        [2, 0, 1, 0, 0, 0, 0b11],
        [2, 0, 1, 0, 0, 0, 1, 0],
        [2, 31, 1, 0, 0, 0, 0b1000, 0, 0, 0, 0],
    ],
)
def test_malformed_messages_are_refused(message: list[int]) -> None:
    for unpack in (coders.unpack_indices, reference.unpack_indices):
        with pytest.raises(WireError):
            unpack(torch.tensor(message, dtype=torch.uint8), 12)


def test_another_count_is_refused() -> None:
    message = coders.pack_indices(torch.tensor([1, 5]), 100)
    for unpack in (coders.unpack_indices, reference.unpack_indices):
        assert unpack(message, 100, 2).tolist() == [1, 5]
        with pytest.raises(WireError, match="2 positions where 3"):
            unpack(message, 100, 3)


def test_unaligned_messages_are_read() -> None:
    positions = support(3000, 0.03, 9)
    message = coders.pack_indices(positions, 3000)
    for offset in range(8):
        shifted = torch.cat([torch.zeros(offset, dtype=torch.uint8), message])[offset:]
        assert torch.equal(coders.unpack_indices(shifted, 3000), positions)


def test_damaged_messages_never_do_harm() -> None:
    n = 700
    messages = [coders.pack_indices(support(n, density, 1), n) for density in (0.003, 0.01, 0.03, 0.1, 0.5)]
    for message in damaged(messages, 3, seed=7, rounds=1500):
        found = agree([lambda m: coders.unpack_indices(m, n), lambda m: reference.unpack_indices(m, n)], message)
        if found is not None and found.numel():
            assert int(found[0]) >= 0
            assert int(found[-1]) < n
            assert bool((found.diff() > 0).all())


def test_strided_views_are_packed_like_copies() -> None:
    for density in (0.01, 0.1, 0.9):
        positions = support(3000, density, 1)
        message = coders.pack_indices(torch.stack([positions, positions], 1)[:, 0], 3000)
        assert torch.equal(message, coders.pack_indices(positions, 3000))
        strided = torch.stack([message, message], 1)[:, 0]
        assert torch.equal(coders.unpack_indices(strided, 3000), positions)
