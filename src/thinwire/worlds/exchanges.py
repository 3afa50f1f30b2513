"""Messages between two ranks of a process group: exchanges, and journeys of several of them."""

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.core.buffers import Buffers
from thinwire.core.ops import LENGTH_BYTES, Hops, Leg
from thinwire.errors import WireError, WorldError

_LONGEST = 2**31 - 1

# where ranks share cores, the backend's threads get theirs before work that is not urgent begins
give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: None)


class Flight(NamedTuple):
    """An exchange under way, with what must stay where it is until it has ended."""

    incoming: Tensor
    sizes: Sequence[int]
    works: list[Any]
    outgoing: Tensor


class Exchanges:
    """Sends and receives on one process group, in work memory that is kept."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise WorldError(
                "torch.distributed is not initialised: call torch.distributed.init_process_group() first,"
                " or use thinwire.simulate() in one process."
            )
        self.group = group
        self.rank = dist.get_rank(group)
        self.ranks = dist.get_world_size(group)
        self.buffers = Buffers()  # for one drive at a time; those of an operation that failed may still be in use

    def _make_journey(self, op: Hops) -> None:
        """Send, receive and work, leg by leg."""
        last = len(op.legs) - 1
        landed: tuple[int, list[Tensor]] | None = None  # what has come and is not taken yet
        items, places = op.given(0), self._places(op)
        for at, leg in enumerate(op.legs):
            sizes = self._lengths(items, leg) if op.sizes is None else op.sizes[at]
            flight = self._depart(items, leg, sizes, places[at % 2])
            give_way()
            if landed is not None:
                op.taken(*landed)
            early = at < last and op.legs[at + 1].needs < at
            if early:
                items = op.given(at + 1)
            landed = (at, self._arrive(flight))
            if not early:
                op.taken(*landed)
                landed = None
                items = op.given(at + 1) if at < last else []

    def _places(self, op: Hops) -> list[Tensor | None]:
        """Memory for what comes, if its size is known: one message is under way, and one waits to be taken."""
        if op.sizes is None:
            return [None, None]
        longest = max((sum(sizes) for sizes in op.sizes), default=0)
        return [self.buffers.empty(longest, torch.uint8, op.device) for _ in range(2)]

    def _depart(self, items: Sequence[Tensor], leg: Leg, sizes: Sequence[int], place: Tensor | None = None) -> Flight:
        flat = self._joined(items)
        size, to, source = sum(sizes), self._global(leg.to), self._global(leg.source)
        incoming = self.buffers.empty(size, flat.dtype, flat.device) if place is None else place[:size]
        # to receive comes first: Gloo sends at once where the receiver is known to wait, else it asks
        both = [dist.P2POp(dist.irecv, incoming, source, self.group), dist.P2POp(dist.isend, flat, to, self.group)]
        return Flight(incoming, sizes, dist.batch_isend_irecv(both), flat)

    def _arrive(self, flight: Flight) -> list[Tensor]:
        for work in flight.works:
            work.wait()
        return split(flight.incoming, flight.sizes)

    def _lengths(self, items: Sequence[Tensor], leg: Leg) -> list[int]:
        """How long the items are that will come, told before them."""
        mine = checked_lengths([t.numel() for t in items])
        lengths = torch.tensor(mine, dtype=torch.int32, device=self._device())
        (told,) = self._arrive(self._depart([lengths], leg, [lengths.numel()]))
        return self._heard_lengths(told)

    def _global(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def _heard_lengths(self, heard: Tensor) -> list[int]:
        lengths: list[int] = heard.tolist()
        if any(n < 0 for n in lengths):
            raise WireError(f"rank {self.rank} of {self.ranks}: a peer announced a message of negative length.")
        return lengths

    def _joined(self, items: Sequence[Tensor]) -> Tensor:
        """One flat tensor: the items' own memory where they lie one behind the other."""
        first = items[0]
        if len(items) == 1:
            return first.contiguous()
        if _adjacent(items):
            return first.as_strided((sum(t.numel() for t in items),), (1,))
        flat = self.buffers.empty(sum(t.numel() for t in items), first.dtype, first.device)
        return torch.cat([t.reshape(-1) for t in items], out=flat)

    def _device(self) -> torch.device:
        """Where small control tensors must live for this backend."""
        name = str(dist.get_backend(self.group))
        return torch.device("cuda", torch.cuda.current_device()) if "nccl" in name else torch.device("cpu")


def checked_lengths(lengths: list[int]) -> list[int]:
    if any(n > _LONGEST for n in lengths):
        raise WireError(
            f"a message of {max(lengths)} bytes is longer than the {_LONGEST} that {LENGTH_BYTES} bytes can say."
        )
    return lengths


def _adjacent(items: Sequence[Tensor]) -> bool:
    storage, end = items[0].untyped_storage().data_ptr(), items[0].data_ptr()
    for item in items:
        if item.data_ptr() != end or not item.is_contiguous() or item.untyped_storage().data_ptr() != storage:
            return False
        end += item.numel() * item.element_size()
    return True


def split(flat: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    return [flat] if len(sizes) == 1 else list(torch.split(flat, list(sizes)))
