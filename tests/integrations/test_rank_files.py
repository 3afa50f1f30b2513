"""Files of each rank beside a checkpoint: whole, complete, of any number of ranks, and refused otherwise."""

from pathlib import Path
from typing import Any

import pytest
import torch

from thinwire.errors import StateError
from thinwire.integrations.rank_files import read_state, write_state


class Kept:
    """A handle as far as checkpoints go."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, saved: Any) -> None:
        self.state = saved


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write_state(Kept({"world_size": 1, "rank0": {"w": torch.ones(2)}}), tmp_path / "new")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["thinwire-0.pt"]
    kept = Kept({})
    read_state(kept, tmp_path / "new")
    assert kept.state["rank0"]["w"].tolist() == [1, 1]


def test_another_number_of_ranks_reads_the_files_of_all(tmp_path: Path) -> None:
    for rank in range(12):  # two digits: the order is that of numbers
        torch.save({"world_size": 12, f"rank{rank}": {"r": rank}}, tmp_path / f"thinwire-{rank}.pt")
    kept = Kept({})
    read_state(kept, tmp_path)
    assert [kept.state[f"rank{rank}"]["r"] for rank in range(12)] == list(range(12))


def test_a_checkpoint_without_thinwire_is_refused(tmp_path: Path) -> None:
    kept = Kept({"a": 1})
    with pytest.raises(StateError, match=r"rank 0 cannot read .*written without thinwire; load it before"):
        read_state(kept, tmp_path)
    assert kept.state == {"a": 1}


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    write_state(Kept({"world_size": 1, "rank0": {}}), tmp_path)
    path = tmp_path / "thinwire-0.pt"
    path.write_bytes(path.read_bytes()[:100])
    kept = Kept({"a": 1})
    with pytest.raises(StateError, match="rank 0 cannot read its thinwire state"):
        read_state(kept, tmp_path)
    assert kept.state == {"a": 1}
