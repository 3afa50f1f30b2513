"""Work memory: pieces are handed out again after a reset, unless they were kept."""

import pytest
import torch

from thinwire import Codec, Slot, StepInfo
from thinwire.core import buffers as buffers_of_a_step
from thinwire.core.average import average
from thinwire.core.buffers import Buffers
from thinwire.core.ops import Rounds

LONG = 1 << 18  # numbers of a piece that is not cut from a block
CPU = torch.device("cpu")


def alone(buffers: Buffers, numel: int = LONG) -> torch.Tensor:
    return buffers.alone(numel, torch.float32, CPU)


def test_pieces_come_back_with_a_reset() -> None:
    buffers = Buffers()
    first, second = alone(buffers), alone(buffers)
    assert first.data_ptr() != second.data_ptr()
    buffers.reset()
    again = {alone(buffers).data_ptr(), alone(buffers).data_ptr()}
    assert again == {first.data_ptr(), second.data_ptr()}


def test_what_is_kept_does_not_come_back_and_its_replacement_does() -> None:
    buffers = Buffers()
    piece, old = alone(buffers), torch.zeros(LONG)
    assert buffers.kept(piece, old)
    buffers.reset()
    assert alone(buffers).data_ptr() == old.data_ptr()
    assert alone(buffers).data_ptr() not in (old.data_ptr(), piece.data_ptr())


def test_only_what_was_lent_since_the_reset_can_be_kept() -> None:
    buffers = Buffers()
    piece = alone(buffers)
    buffers.reset()
    assert not buffers.kept(piece, None)
    assert not buffers.kept(alone(buffers, 100), None)  # short: a piece of a block, which is used again
    assert not buffers.kept(torch.zeros(LONG), None)


def test_there_is_a_limit_to_what_is_not_cut_from_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers_of_a_step, "_MOST_ALONE", 3 * 4 * LONG + 64)
    buffers = Buffers()
    pieces = [alone(buffers) for _ in range(4)]
    assert [buffers.kept(piece, torch.zeros(LONG)) for piece in pieces] == [True, True, True, False]
    buffers.reset()
    assert buffers.kept(alone(buffers), None)  # and one less is ours
    assert buffers.kept(alone(buffers, LONG + 1), None)


def test_memory_of_another_shape_is_not_taken_instead() -> None:
    buffers = Buffers()
    assert buffers.kept(alone(buffers), torch.zeros(2, LONG // 2))
    buffers.reset()
    assert alone(buffers).shape == (LONG,)


def test_a_residual_stays_where_it_was_made_and_the_old_memory_is_used_again() -> None:
    codec, slot, buffers = Codec.parse("sign"), Slot(), Buffers()
    x = torch.randn(LONG, generator=torch.Generator().manual_seed(1))
    owed, seen = torch.zeros(LONG), set[int]()
    for step in range(6):
        buffers.reset()
        mean = done(average(codec, x, slot, StepInfo(0, 1, 0, step, buffers=buffers)))
        assert slot.residual_data is not None
        owed = owed + x - mean
        torch.testing.assert_close(slot.residual_data, owed, rtol=1e-4, atol=1e-4)
        seen.add(slot.residual_data.data_ptr())
    assert len(seen) == 2


def test_a_step_that_is_not_finite_leaves_the_residual_alone() -> None:
    codec, slot, buffers = Codec.parse("sign"), Slot(), Buffers()
    x = torch.randn(LONG, generator=torch.Generator().manual_seed(2))
    done(average(codec, x, slot, StepInfo(0, 1, 0, 0, buffers=buffers)))
    assert slot.residual_data is not None
    before = slot.residual_data.clone()
    buffers.reset()
    x[7] = float("nan")
    done(average(codec, x, slot, StepInfo(0, 1, 0, 1, buffers=buffers)))
    buffers.reset()
    alone(buffers).fill_(1e9)  # what the failed step used, and nobody holds
    assert torch.equal(slot.residual_data, before)


def done(rounds: Rounds[torch.Tensor]) -> torch.Tensor:
    """The result of the only rank: each operation gives it back what it sent."""
    reply = None
    while True:
        try:
            op = rounds.send(reply)
        except StopIteration as end:
            mean: torch.Tensor = end.value
            return mean
        parts = getattr(op, "parts", None)
        reply = [list(op.items)] if parts is None else [list(items) for items in parts]  # type: ignore[union-attr]
