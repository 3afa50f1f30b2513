"""Operations through memory of the host: for tensors of a device in groups whose backend moves tensors of the CPU.

What is moved is encoded on the device, so that few bytes are copied. Each copy to the host waits for the device. CUDA
copies from and to pinned memory, which torch keeps.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.core.ops import AllToAll, Collective, MessageSource, PipelinedExchange, SendRecv, Traffic


def moved_directly(group: dist.ProcessGroup | None) -> set[str]:
    """Types of devices whose tensors a backend other than Gloo moves: Gloo moves few operations of them."""
    served = (part.partition(":") for part in str(dist.get_backend_config(group)).split(","))
    return {"cpu"} | {device for device, _, name in served if name != "gloo"}


def device_of(op: Collective) -> torch.device:
    """Where the tensors of an operation are."""
    if isinstance(op, PipelinedExchange):
        return op.device
    if isinstance(op, AllToAll):
        return next((items[0].device for items in op.parts if items), torch.device("cpu"))
    return op.items[0].device


def staged(op: Collective) -> tuple[Collective, Callable[[Any], Any]]:
    """The same operation on the CPU, and what brings its reply to the device."""
    device = device_of(op)
    if isinstance(op, PipelinedExchange):
        items = [_StagedItem(item, device) for item in op.items]
        return replace(op, items=items, device=torch.device("cpu")), lambda reply: reply
    if isinstance(op, AllToAll):
        return replace(op, parts=[_on_host(items) for items in op.parts]), lambda reply: _on_device(reply, device)
    here: Collective = replace(op, items=_on_host(op.items))
    if isinstance(op, SendRecv):
        return here, lambda reply: (_on_device(reply[0], device), reply[1])
    return here, lambda reply: _on_device(reply, device)


class _StagedItem:
    """An item of an exchange whose messages are copied to the host before they are sent, and back when they arrive."""

    def __init__(self, item: MessageSource, device: torch.device) -> None:
        self.item, self.device = item, device
        self.size, self.expected_size, self.longest = item.size, item.expected_size, item.longest
        self.traffic: Traffic = item.traffic

    def prepare(self, hop: int) -> bool:
        return self.item.prepare(hop)

    def next_message(self, hop: int) -> Tensor:
        return _on_host([self.item.next_message(hop)])[0]

    def on_sent(self, hop: int) -> None:
        self.item.on_sent(hop)

    def on_message(self, hop: int, message: Tensor) -> None:
        self.item.on_message(hop, message.to(self.device))


def _on_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies in memory of the host, that are complete."""
    found = [torch.empty(t.shape, dtype=t.dtype, pin_memory=t.is_cuda).copy_(t, non_blocking=True) for t in tensors]
    for device in {t.device for t in tensors}:
        torch.get_device_module(device).current_stream(device).synchronize()
    return found


def _on_device(reply: Any, device: torch.device) -> Any:
    """The same lists with tensors on the device; the memory that they come from may be used again at once."""
    if isinstance(reply, Tensor):
        return reply.to(device)
    return [_on_device(each, device) for each in reply]
