"""The world of processes that torch.distributed joins: it performs operations on a process group."""

import atexit
import threading
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.core.average import average as average_rounds
from thinwire.core.buffers import Buffers
from thinwire.core.codec import Codec
from thinwire.core.inputs import check_floats, check_out, check_weights
from thinwire.core.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Begin,
    Broadcast,
    Collective,
    Finish,
    Op,
    PipelinedExchange,
    Rounds,
    SendRecv,
    received_bytes,
    rounds_in,
    sent_bytes,
)
from thinwire.core.profiling import span
from thinwire.core.route import StepInfo
from thinwire.core.slot import Slot, check_slot
from thinwire.core.spec import Spec
from thinwire.core.stage import Stage
from thinwire.errors import WorldError
from thinwire.worlds.backend import Backend, yield_cpu
from thinwire.worlds.group import Group, devices_of, process_group
from thinwire.worlds.process_end import wait_for_gloo
from thinwire.worlds.staged import device_of, moved_directly, staged
from thinwire.worlds.tcp.handshake import connect
from thinwire.worlds.tcp.presence import Presence
from thinwire.worlds.tcp.transport import TcpTransport
from thinwire.worlds.transport import Transport

if TYPE_CHECKING:
    from thinwire.worlds.group import GroupLike

T = TypeVar("T")

atexit.register(wait_for_gloo)

_PRESENCE: "weakref.WeakKeyDictionary[dist.ProcessGroup, Presence | None]" = weakref.WeakKeyDictionary()


def average(
    tensor: Tensor,
    codec: Codec | Stage | str,
    *,
    slot: Slot | None = None,
    group: "GroupLike" = None,
    seed: int = 0,
    step: int = 0,
    reduction: str | None = None,
    weights: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The mean of one tensor over the ranks of a process group, compressed by a codec.

    All ranks call it with tensors of equal shape and type, and get the same bits.

    Args:
        tensor: This rank's tensor.
        codec: The codec, or its text; equal on all ranks.
        slot: The codec's memory for this tensor. Keep it between steps: it holds residuals and bases. None forgets.
        group: The process group, or a DeviceMesh of one dimension; None takes the default group.
        seed: Seed of random rounding; equal on all ranks.
        step: The number of the step; equal on all ranks.
        reduction: `"summed"`, `"sharded"`, `"gathered"` or `"ring"`; None takes the cheapest.
        weights: The parameter's values, for codecs that compare gradients with them (`iwp`).
        out: A tensor for the mean, which may be `tensor` itself; None makes one.

    Returns:
        The mean, equal on all ranks.

    Examples:
        >>> slot = thinwire.Slot()
        >>> for step in range(3):
        ...     mean = thinwire.average(gradient, "topk(density=0.1)", slot=slot, step=step)
    """
    codec, slot = Codec.parse(codec), check_slot(slot)
    check_floats("the tensor", tensor)
    if weights is not None:
        check_weights(weights, tensor)
    if out is not None:
        check_out(out, tensor)
    _warn_declined(codec, tensor)
    world = _world(process_group(group))
    info = StepInfo(world.rank, world.ranks, seed, step, reduction, buffers=world.buffers)
    return world.drive(average_rounds(codec, tensor, slot, info, weights, out))


_DECLINED: set[str] = set()  # codecs of which a warning has been given


def _warn_declined(codec: Codec, tensor: Tensor) -> None:
    """Say once for each codec that it leaves a tensor as it is."""
    spec = Spec.of(tuple(tensor.shape))
    if (reason := codec.declined(spec)) is None or codec.compresses(spec) or str(codec) in _DECLINED:
        return
    warnings.warn(
        f"nothing is compressed of a tensor of shape {tuple(tensor.shape)} ({reason}); pass matrices that are large"
        " enough, or take a codec that does not need them, such as qsgd(bits=4).",
        RuntimeWarning,
        stacklevel=3,
    )
    _DECLINED.add(str(codec))


_KEPT = threading.local()


def _world(group: dist.ProcessGroup | None) -> "Distributed":
    """A world of this group that uses this thread's work memory, which is kept for the next call."""
    if not hasattr(_KEPT, "buffers"):
        _KEPT.buffers = Buffers()
    return Distributed(group, _KEPT.buffers)


@dataclass
class Counters:
    """Bytes, rounds and seconds of communication."""

    sent: int = 0
    received: int = 0
    rounds: int = 0
    seconds: float = 0.0


class Distributed:
    """Performs operations on one process group and counts what they cost this rank."""

    def __init__(self, group: dist.ProcessGroup | None = None, buffers: Buffers | None = None) -> None:
        """`buffers`: work memory for one `drive` at a time; a failed operation may still use it."""
        self._group = Group(group)
        self.group, self.rank, self.ranks = group, self._group.rank, self._group.ranks
        self.buffers = Buffers() if buffers is None else buffers
        self._backend = Backend(self._group, self.buffers)
        self._tcp = TcpTransport(self._group, self.buffers)
        self._tcp_devices = devices_of("gloo", group) & {"cpu"}
        self._moved = moved_directly(group)
        self._counters = Counters()
        self._named = self.rank, self.ranks  # in errors

    @property
    def sent(self) -> int:
        """Bytes that this rank put on the wire."""
        return self._counters.sent

    def counters(self) -> Counters:
        """What has been spent so far."""
        return replace(self._counters)

    def drive(self, rounds: Rounds[T]) -> T:
        """Run rounds to their end. Memory that they took from `buffers` is valid until the next rounds begin."""
        self.buffers.reset()
        self._connect_presence()
        reply: Any = None
        try:
            while True:
                try:
                    op = rounds.send(reply)
                except StopIteration as end:
                    result: T = end.value
                    return result
                reply = self.perform(op)
        except BaseException as reason:
            self.tell_failure(reason)
            raise

    def perform(self, op: Op) -> Any:
        """Perform one operation and return its reply; if the backend fails, the error names the operation."""
        began = perf_counter()
        what = type(op.ticket[0] if isinstance(op, Finish) else op.op if isinstance(op, Begin) else op).__name__
        try:
            with span("exchange", what):
                return self._perform(op)
        except RuntimeError as reason:
            raise self.failure(what, reason) from reason
        finally:
            self._counters.seconds += perf_counter() - began

    def _perform(self, op: Op) -> Any:
        if isinstance(op, Finish):
            return self._finish(*op.ticket)
        started = op.op if isinstance(op, Begin) else op
        self._counters.rounds += rounds_in(started)
        ticket = (started, self._begin(started))
        if isinstance(op, Begin):
            yield_cpu()
            return ticket
        return self._finish(*ticket)

    def _finish(self, op: Collective, finish: Callable[[], Any]) -> Any:
        reply = finish()
        self._counters.sent += sent_bytes(op, reply, self.rank, self.ranks)
        self._counters.received += received_bytes(op, reply, self.rank, self.ranks)
        return reply

    def _begin(self, op: Collective) -> Callable[[], Any]:
        """Start an operation; the returned function waits for it and returns the reply."""
        if self.ranks > 1 and device_of(op).type not in self._moved:
            on_host, back = staged(op)
            finish = self._begin(on_host)
            return lambda: back(finish())
        match op:
            case AllReduce():
                return self._backend.all_reduce(op)
            case AllGather():
                return self._all_gather(op)
            case AllToAll():
                return self._backend.all_to_all(op.parts, op.exact, op.longest)
            case Broadcast():
                return self._backend.broadcast(op)
            case SendRecv():
                return self._backend.send_recv(op)
            case PipelinedExchange():
                return lambda: self._transport(op.device).exchange(op)

    def _all_gather(self, op: AllGather) -> Callable[[], list[list[Tensor]]]:
        if self.ranks == 1:
            return lambda: [list(op.items)]
        if op.exact:
            return self._backend.all_gather(op)
        of_bytes = all(t.dtype == torch.uint8 for t in op.items)
        transport = self._transport(op.items[0].device) if of_bytes else self._backend
        return transport.gather(op.items, op.longest)

    def _transport(self, device: torch.device) -> Transport:
        """TCP connections for CPU tensors that Gloo would send, if the ranks can open them; else the backend."""
        return self._tcp if device.type in self._tcp_devices and self._tcp.open(self.gathered) else self._backend

    def close_connections(self) -> None:
        """Close the connections that this group's transports opened, if there are any."""
        for transport in (self._tcp, self._backend):
            transport.close()

    @property
    def control_device(self) -> torch.device:
        """Where tensors must be that this group's backend sends."""
        return self._group.control_device

    @property
    def timeout(self) -> float:
        """Seconds for which the group waits for a peer."""
        return self._group.timeout

    def gathered(self, mine: Any, what: str = "an exchange of objects") -> list[Any]:
        """The objects of all ranks, by rank."""
        everyone: list[Any] = [None] * self.ranks
        try:
            dist.all_gather_object(everyone, mine, group=self.group)
        except RuntimeError as reason:
            raise self.failure(what, reason) from reason
        return everyone

    def share_presence(self, other: "Distributed") -> None:
        """Use the presence of another group that has the same ranks and perhaps more; errors name ranks as it does."""
        _PRESENCE[self._group.process_group] = other._connect_presence()
        self._named = other._named

    def tell_failure(self, reason: BaseException) -> None:
        """Send the other ranks the reason why this one does not take part in the next operation."""
        presence = _PRESENCE.get(self._group.process_group)
        if presence is not None:
            presence.tell_failure(reason)

    def failure(self, what: str, reason: BaseException) -> WorldError:
        """The error to raise if the backend or a connection fails: it names the rank that is lost."""
        presence = _PRESENCE.get(self._group.process_group)
        who = "a peer may have died or left" if presence is None else presence.explain(self.timeout)
        rank, ranks = self._named
        part = f"rank {self.rank} of this part of {self.ranks} ranks: " if ranks != self.ranks else ""
        return WorldError(f"rank {rank} of {ranks}: {what} failed; {who} ({part}{str(reason).splitlines()[0]})")

    def _connect_presence(self) -> Presence | None:
        """The presence of this group; at the first call all ranks connect it, at the same time."""
        group = self._group.process_group
        if group not in _PRESENCE:
            found = connect(self.rank, self.ranks, self.gathered) if self.ranks > 1 else None
            _PRESENCE[group] = None if found is None else Presence(found)
        return _PRESENCE[group]
