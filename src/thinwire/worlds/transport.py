"""The operations that a world performs over its own TCP connections or by the backend's send and receive."""

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from thinwire.core.ops import PipelinedExchange


class Transport(Protocol):
    """Moves messages between the ranks of one process group.

    All ranks call the same methods in the same order. A failure is a `RuntimeError`, or a `WireError` if a peer sent
    bytes that are damaged or not expected.
    """

    def exchange(self, op: PipelinedExchange) -> None:
        """Perform all hops of an exchange, and call its items as its description says."""

    def gather(self, items: Sequence[Tensor], longest: int) -> Callable[[], list[list[Tensor]]]:
        """Begin to send this rank's items to all ranks; the returned function waits for the items of every rank.

        All ranks send as many items. Their lengths may differ; none may have more than `longest` elements.
        """

    def close(self) -> None:
        """Close the connections that this transport opened; the next operation opens new ones."""
