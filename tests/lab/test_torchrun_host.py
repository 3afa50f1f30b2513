"""The host that holds the store is the last to leave, unless something failed."""

import threading
from dataclasses import dataclass
from typing import Any

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from thinwire_lab.lab.torchrun_host import leave_last


@dataclass
class Rendezvous:
    _store: Any
    rank: int
    world_size: int = 3


class GoneStore:
    def add(self, key: str, count: int) -> int:
        raise RuntimeError("connection lost")


@pytest.mark.timeout(30)
def test_the_first_host_waits_for_all_others() -> None:
    store = HashStore()
    first = threading.Thread(target=leave_last, args=(Rendezvous(store, 0),))
    first.start()
    leave_last(Rendezvous(store, 2))
    first.join(0.2)
    assert first.is_alive()
    leave_last(Rendezvous(store, 1))
    first.join(9)
    assert not first.is_alive()


@pytest.mark.timeout(30)
def test_a_failure_is_not_delayed() -> None:
    try:
        raise ValueError("the script broke")
    except ValueError:
        assert leave_last(Rendezvous(HashStore(), 0))


@pytest.mark.timeout(30)
@pytest.mark.parametrize("store", [None, GoneStore()])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_store_that_is_gone_is_no_error(store: GoneStore | None, rank: int) -> None:
    assert leave_last(Rendezvous(store, rank))
