"""The transport over TCP connections of the ranks' own."""

import warnings
import weakref
from collections.abc import Callable, Sequence

import torch.distributed as dist
from torch import Tensor

from thinwire.core.buffers import Buffers
from thinwire.core.ops import PipelinedExchange
from thinwire.errors import WorldError
from thinwire.worlds.group import Group
from thinwire.worlds.tcp.connections import Connections
from thinwire.worlds.tcp.exchange import Exchange
from thinwire.worlds.tcp.handshake import GatherObjects, connect
from thinwire.worlds.tcp.relay import Relay

# of each process group, whichever transport opened them; None: its ranks cannot reach each other
_CONNECTIONS: "weakref.WeakKeyDictionary[dist.ProcessGroup, Connections | None]" = weakref.WeakKeyDictionary()


class TcpTransport:
    """Sends CPU tensors of bytes over connections that all transports of one process group share."""

    def __init__(self, group: Group, buffers: Buffers) -> None:
        self.group, self.buffers = group, buffers

    def open(self, gather: GatherObjects) -> bool:
        """Whether there are connections; at the first call all ranks open them, at the same time."""
        process_group = self.group.process_group
        if process_group not in _CONNECTIONS:
            found = connect(self.group.rank, self.group.ranks, gather)
            _CONNECTIONS[process_group] = None if found is None else Connections(found, self.group.timeout)
            if found is None and self.group.rank == 0:
                warnings.warn(
                    "thinwire's ranks cannot open connections of their own to each other, so that long messages go"
                    " through Gloo, more slowly; let hosts reach each other on all ports, or set GLOO_SOCKET_IFNAME to"
                    " the interface where they do.",
                    stacklevel=2,
                )
        return _CONNECTIONS[process_group] is not None

    @property
    def connections(self) -> Connections:
        """The connections that `open` has opened."""
        connections = _CONNECTIONS.get(self.group.process_group)
        if connections is None:
            raise WorldError("the connections to the other ranks are not open")
        return connections

    def exchange(self, op: PipelinedExchange) -> None:
        connections = self.connections
        with connections.exchange() as number:
            Exchange(op, connections.by_rank, number, self.buffers, connections.timeout).run()

    def gather(self, items: Sequence[Tensor], longest: int) -> Callable[[], list[list[Tensor]]]:
        connections = self.connections

        def finish() -> list[list[Tensor]]:
            with connections.exchange() as number:
                relay = Relay(self.group.rank, connections.by_rank, number, self.buffers, connections.timeout)
                return relay.run([t.contiguous() for t in items], longest)

        return finish

    def close(self) -> None:
        connections = _CONNECTIONS.pop(self.group.process_group, None)
        if connections is not None:
            connections.close()
