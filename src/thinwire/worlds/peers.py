"""The ranks of a world as far as they only compare and exchange small objects, and one process as such a world."""

from typing import Any, Protocol

import torch.distributed as dist


class Peers(Protocol):
    """What saving, loading and comparing need of a world."""

    group: dist.ProcessGroup | None
    rank: int
    ranks: int

    @property
    def timeout(self) -> float: ...
    def gathered(self, mine: Any, what: str = ...) -> list[Any]: ...


class Solo:
    """One process, with or without a process group."""

    def __init__(self) -> None:
        self.group: dist.ProcessGroup | None = None
        self.rank, self.ranks, self.timeout = 0, 1, 0.0

    def gathered(self, mine: Any, what: str = "") -> list[Any]:
        """The objects of all ranks, by rank."""
        return [mine]
