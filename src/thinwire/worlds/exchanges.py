"""Messages between two ranks of a process group: exchanges, and journeys of several of them."""

import os
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.core.buffers import Buffers
from thinwire.core.ops import Hops, Leg, announced_lengths, checked_lengths
from thinwire.errors import WorldError
from thinwire.worlds.handshake import connected
from thinwire.worlds.journeys import Journey
from thinwire.worlds.presence import Presence
from thinwire.worlds.streams import Streams

# where ranks share cores, the backend's threads get theirs before work that is not urgent begins
give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: None)

_PRESENCE: "weakref.WeakKeyDictionary[dist.ProcessGroup, Presence | None]" = weakref.WeakKeyDictionary()
_STREAMS: "weakref.WeakKeyDictionary[dist.ProcessGroup, Streams | None]" = weakref.WeakKeyDictionary()


@dataclass
class Flight:
    """An exchange under way, with what must stay where it is until it has ended."""

    outgoing: Tensor
    items: list[Tensor]
    works: list[Any]


class Exchanges:
    """Sends and receives on one process group, in work memory that is kept."""

    _journey: Callable[..., Journey] = Journey

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise WorldError(
                "torch.distributed is not initialised: call torch.distributed.init_process_group() first,"
                " or use thinwire.simulate() in one process."
            )
        self.group = group
        self.rank = dist.get_rank(group)
        self.ranks = dist.get_world_size(group)
        self._gloo = _devices_of("gloo", group)
        self.buffers = Buffers()  # for one drive at a time; those of an operation that failed may still be in use

    def _make_journey(self, op: Hops) -> None:
        """Send, receive and work: over streams where tensors go through Gloo, and else leg by leg."""
        streams = self._streams(op.device)
        if streams is not None:
            with streams.journey() as number:
                self._journey(op, streams.streams, number, self.buffers, streams.patience).make()
            return
        made: list[Tensor] | None = None
        before: list[Tensor] = []  # what came with the leg before, and is not taken yet
        for at, leg in enumerate(op.legs):
            if made is None:  # it needs what came
                self._take_all(op, at - 1, before)
                made = self._given_all(op, at)
            flight = self._depart(made, leg, op.sizes or self._lengths(made, leg, [item.longest for item in op.items]))
            give_way()
            self._take_all(op, at - 1, before)
            ahead = at + 1 < len(op.legs) and op.legs[at + 1].needs < at
            made = self._given_all(op, at + 1) if ahead else None
            before = self._arrive(flight)
            for i in range(len(op.items)):
                op.gone(at, i)
        self._take_all(op, len(op.legs) - 1, before)

    def _given_all(self, op: Hops, leg: int) -> list[Tensor]:
        return [op.given(leg, i) for i in range(len(op.items))]

    def _take_all(self, op: Hops, leg: int, came: list[Tensor]) -> None:
        for i, item in enumerate(came):
            op.taken(leg, i, item)
        came.clear()

    def _streams(self, device: torch.device) -> Streams | None:
        """Connections of this group, made when they are wanted for the first time, by all ranks at the same time."""
        if device.type != "cpu" or "cpu" not in self._gloo:
            return None
        group = self._process_group
        if group not in _STREAMS:
            found = connected(self.rank, self.ranks, self.gathered)
            _STREAMS[group] = None if found is None else Streams(found, self.timeout)
            if found is None and self.rank == 0:
                warnings.warn(
                    "thinwire's ranks cannot open connections of their own to each other, so that long messages go"
                    " through Gloo, more slowly; let hosts reach each other on all ports, or set GLOO_SOCKET_IFNAME to"
                    " the interface where they do.",
                    stacklevel=2,
                )
        return _STREAMS[group]

    def hang_up(self) -> None:
        """Close this group's own connections, if it has any."""
        streams = _STREAMS.pop(self._process_group, None)
        if streams is not None:
            streams.close()

    def gathered(self, said: Any, what: str = "an exchange of objects") -> list[Any]:
        """What every rank says."""
        everyone: list[Any] = [None] * self.ranks
        try:
            dist.all_gather_object(everyone, said, group=self.group)
        except RuntimeError as reason:
            raise self.failure(what, reason) from reason
        return everyone

    def meet(self) -> Presence | None:
        """What tells who is lost; connected when it is wanted for the first time, by all ranks at the same time."""
        group = self._process_group
        if group not in _PRESENCE:
            found = connected(self.rank, self.ranks, self.gathered) if self.ranks > 1 else None
            _PRESENCE[group] = None if found is None else Presence(found)
        return _PRESENCE[group]

    def share_presence(self, other: "Exchanges") -> None:
        """Use that of another group of the same ranks."""
        _PRESENCE[self._process_group] = other.meet()

    def tell_failure(self, reason: BaseException) -> None:
        """Tell the other ranks that this one will not take part in the next exchange, and why."""
        presence = _PRESENCE.get(self._process_group)
        if presence is not None:
            presence.tell_failure(reason)

    def failure(self, what: str, reason: BaseException) -> WorldError:
        """What is to be raised if the backend or a connection fails: it says which rank is lost."""
        presence = _PRESENCE.get(self._process_group)
        who = "a peer may have died or left" if presence is None else presence.explain(self.timeout)
        return WorldError(f"rank {self.rank} of {self.ranks}: {what} failed; {who} ({str(reason).splitlines()[0]})")

    @property
    def timeout(self) -> float:
        """Seconds for which the group waits for a peer."""
        return (timeout_of(self._process_group, self._device()) or dist.default_pg_timeout).total_seconds()

    def _depart(self, items: Sequence[Tensor], leg: Leg, sizes: Sequence[int]) -> Flight:
        """Begin to send and to receive."""
        flat = self._joined(items)
        place = self.buffers.empty(sum(sizes), flat.dtype, flat.device)
        receive = dist.P2POp(dist.irecv, place, self._global(leg.source), self.group)
        send = dist.P2POp(dist.isend, flat, self._global(leg.to), self.group)
        return Flight(flat, split(place, sizes), dist.batch_isend_irecv([receive, send]))

    def _arrive(self, flight: Flight) -> list[Tensor]:
        """Wait until all is there and all is sent."""
        for work in flight.works:
            work.wait()
        return flight.items

    @property
    def _process_group(self) -> dist.ProcessGroup:
        group = self.group or dist.group.WORLD
        assert group is not None  # it is there since `__init__`
        return group

    def _lengths(self, items: Sequence[Tensor], leg: Leg, longest: Sequence[int]) -> list[int]:
        """How long the items are that will come, told before them; `longest`: what each can have at most."""
        mine = checked_lengths([t.numel() for t in items])
        lengths = torch.tensor(mine, dtype=torch.int32, device=self._device())
        (told,) = self._arrive(self._depart([lengths], leg, [lengths.numel()]))
        for length, most in zip(told.tolist(), longest, strict=True):
            announced_lengths([length], most, leg.source)
        return list(told.tolist())

    def _global(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

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


def _devices_of(backend: str, group: dist.ProcessGroup | None) -> set[str]:
    """Types of devices whose tensors go through this backend; a group may have one for each type."""
    served = (part.partition(":") for part in str(dist.get_backend_config(group)).split(","))
    return {device for device, _, name in served if name == backend}


def timeout_of(group: dist.ProcessGroup, device: torch.device) -> timedelta | None:
    """How long the group waits for a peer, if its backend tells."""
    try:
        options = getattr(group._get_backend(device), "options", None)
    except RuntimeError:  # a backend without this device
        return None
    found: timedelta | None = getattr(options, "_timeout", None)
    return found


def _adjacent(items: Sequence[Tensor]) -> bool:
    storage, end = items[0].untyped_storage().data_ptr(), items[0].data_ptr()
    for item in items:
        if item.data_ptr() != end or not item.is_contiguous() or item.untyped_storage().data_ptr() != storage:
            return False
        end += item.numel() * item.element_size()
    return True


def split(flat: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    return [flat] if len(sizes) == 1 else list(torch.split(flat, list(sizes)))
