"""Which ranks share a host, and which of them carries a parameter between hosts."""

import os
import socket
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from thinwire.errors import CodecError, WorldError
from thinwire.worlds.peers import Peers


@dataclass(frozen=True)
class Hosts:
    """The ranks of a group by host, as many on each; `rank` is this one."""

    ranks: tuple[tuple[int, ...], ...]
    rank: int

    @property
    def local_size(self) -> int:
        return len(self.ranks[0])

    @property
    def local_rank(self) -> int:
        return next(host.index(self.rank) for host in self.ranks if self.rank in host)

    @property
    def columns(self) -> tuple[tuple[int, ...], ...]:
        """The ranks that have the same local rank, by local rank."""
        return tuple(zip(*self.ranks, strict=True))


@dataclass(frozen=True)
class Share:
    """The parameters that this rank carries between hosts; `fellows` carry them, one on each host."""

    names: frozenset[str]
    local_size: int
    fellows: tuple[int, ...]


def find_hosts(world: Peers, local_size: Any) -> Hosts:
    """The hosts of a group; `local_size` is "auto" or the number of ranks on each. All ranks call it."""
    if local_size == "auto":
        # torchrun counts the machines; without it, ranks of one host name share a host
        found = world.gathered((os.environ.get("GROUP_RANK"), socket.gethostname()), "attach")
        hosts: dict[Any, list[int]] = {}
        for rank, key in enumerate(found):
            hosts.setdefault(key, []).append(rank)
        if len({len(ranks) for ranks in hosts.values()}) > 1:
            counted = ", ".join(f"{len(ranks)} on {name}" for (_, name), ranks in hosts.items())
            raise WorldError(
                f"local_size='auto' needs equally many ranks on each host; got {counted}. Start as many on each, or"
                " leave local_size away."
            )
        return Hosts(tuple(map(tuple, hosts.values())), world.rank)
    if isinstance(local_size, bool) or not isinstance(local_size, int) or local_size < 1:
        raise CodecError(f"local_size must be 'auto' or at least 1; got {local_size!r}.")
    if world.ranks % local_size:
        raise CodecError(
            f"local_size must divide the number of ranks, which is {world.ranks}; got {local_size}. Take the number of"
            " ranks on each host."
        )
    starts = range(0, world.ranks, local_size)
    return Hosts(tuple(tuple(range(start, start + local_size)) for start in starts), world.rank)


def share_of(hosts: Hosts, carried: Mapping[str, int]) -> Share:
    """What this rank carries; `carried` is what `carriers` returned."""
    own = hosts.local_rank
    names = frozenset(name for name, rank in carried.items() if rank == own)
    return Share(names, hosts.local_size, hosts.columns[own])


def carriers(parameters: Iterable[tuple[str, Tensor]], local_size: int) -> dict[str, int]:
    """The local rank that carries each parameter: the largest first, each to the rank that has the fewest bytes.

    Parameters stay whole, because codecs that work on matrices need whole ones.
    """
    bytes_of, carried = Counter[int](dict.fromkeys(range(local_size), 0)), {}
    for name, p in sorted(parameters, key=lambda item: (-item[1].numel() * item[1].element_size(), item[0])):
        least = min(range(local_size), key=lambda rank: bytes_of[rank])
        carried[name] = least
        bytes_of[least] += p.numel() * p.element_size()
    return carried
