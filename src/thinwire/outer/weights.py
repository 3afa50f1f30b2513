"""The weights of a model as outer steps see them: what the ranks agreed on last, and what each has made of it."""

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from thinwire.core.ops import Broadcast
from thinwire.errors import WorldError
from thinwire.kernels.checksum import crc32
from thinwire.kernels.shares import all_finite
from thinwire.outer.optimizers import OuterLike, make_outer
from thinwire.worlds.distributed import Distributed


class Anchors:
    """The weights on which the ranks agreed last, equal on all ranks, and the optimizer that moves them.

    They are kept in fp32 or more: an outer step may be smaller than the last bit of a weight in bf16.
    """

    def __init__(self, parameters: Sequence[tuple[str, Tensor]], outer: OuterLike) -> None:
        self.names = [name for name, _ in parameters]
        self._parameters = [p for _, p in parameters]
        self.values = [w.to(torch.promote_types(w.dtype, torch.float32), copy=True) for w in self.weights]
        self.optimizer = make_outer(outer, self.values)
        self.shard = next(filter(None, (_shard(p) for p in self._parameters)), "")

    @property
    def weights(self) -> list[Tensor]:
        """Where the parameters are now: FSDP2 may give them other memory at the first forward pass."""
        return [local(p) for p in self._parameters]

    @torch.no_grad()
    def differences(self, which: Sequence[int]) -> list[Tensor]:
        """Anchor minus weights: what an inner optimizer has done, as a gradient.

        Of weights in bf16 it is the rounded anchor, with which they began: the anchor keeps what rounding cut off.
        """
        weights, values = self.weights, self.values
        return [
            values[at].to(weights[at].dtype).to(values[at].dtype) - weights[at].to(values[at].dtype) for at in which
        ]

    @torch.no_grad()
    def apply(self, which: Sequence[int], means: Sequence[Tensor], mix: float) -> None:
        """Make the outer step with these mean differences, and move the weights towards it."""
        for at, mean in zip(which, means, strict=True):
            self.values[at].grad = mean
        with torch.enable_grad():
            self.optimizer.step()
        weights = self.weights
        for at in which:
            value = self.values[at]
            value.grad = None
            if mix == 1.0:
                weights[at].copy_(value)
            else:
                weights[at].copy_(torch.lerp(weights[at].to(value.dtype), value, mix))


class ModelBuffers:
    """Buffers such as the running means of batch normalisation.

    Only those that changed on some rank are sent: masks and tables never do.
    """

    def __init__(self, model: nn.Module, how: str) -> None:
        """`how`: "average" (those of floating-point numbers), "broadcast" (all, from rank 0) or "local" (none)."""
        found = [] if how == "local" else list(model.named_buffers())
        chosen = [(n, local(b)) for n, b in found if how == "broadcast" or b.is_floating_point()]
        self._model, self.how = model, how
        self.names, self.known = [n for n, _ in chosen], [b.clone() for _, b in chosen]

    @property
    def values(self) -> list[Tensor]:
        """The buffers as they are now: a module may put another tensor in the place of one."""
        found = dict(self._model.named_buffers()) if self.names else {}
        values = [local(found[name]) if name in found else None for name in self.names]
        for name, value, known in zip(self.names, values, self.known, strict=True):
            if value is None or value.shape != known.shape or value.dtype != known.dtype:
                has = "is gone" if value is None else f"is {value.dtype} {tuple(value.shape)}"
                raise WorldError(
                    f"the buffer {name} was {known.dtype} {tuple(known.shape)} when outer steps were attached and {has}"
                    " now; attach with buffers='local' and treat it yourself."
                )
        return [value for value in values if value is not None]

    def changed(self) -> list[int]:
        """1 for each buffer that differs from what the ranks had in common last, else 0."""
        return [int(not torch.equal(b, k)) for b, k in zip(self.values, self.known, strict=True)]

    @torch.no_grad()
    def apply(self, received: dict[int, Tensor], mix: float) -> None:
        values = self.values if received else []
        for at, value in received.items():
            buffer = values[at]
            self.known[at].copy_(value)
            buffer.copy_(value if mix == 1.0 or not value.is_floating_point() else torch.lerp(buffer, value, mix))


@torch.no_grad()
def begin_equal(world: Distributed, anchors: Anchors, frozen: Sequence[Tensor], buffers: ModelBuffers) -> None:
    """Take the weights and buffers of rank 0, as DistributedDataParallel does. Those that are equal are not sent."""
    mine = [*anchors.weights, *frozen, *buffers.values]
    digests = [hashlib.blake2b(as_bytes(tensor).numpy().data, digest_size=16).digest() for tensor in mine]
    everyone = world.gathered(digests, "attach_outer")
    for at, tensor in enumerate(mine):
        if any(other[at] != everyone[0][at] for other in everyone):
            tensor.copy_(world.perform(Broadcast([tensor.contiguous()], 0))[0])
    for anchor, weights in zip(anchors.values, anchors.weights, strict=True):
        anchor.copy_(weights)
    for known, value in zip(buffers.known, buffers.values, strict=True):
        known.copy_(value)


def local(tensor: Tensor) -> Tensor:
    """The memory of a parameter on this rank; of a DTensor, its shard."""
    plain: Any = tensor.detach()
    result: Tensor = plain.to_local() if hasattr(plain, "to_local") else plain
    return result


def _shard(parameter: Any) -> str:
    """Which part of the weights this rank has; nothing if it has all."""
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is None:
        return ""
    places = zip(mesh.get_coordinate() or (), mesh.shape, parameter.placements, strict=True)
    return ", ".join(f"shard {at} of {extent}" for at, extent, place in places if place.is_shard())


def checksum(tensors: Sequence[Tensor]) -> int:
    """A number that is another one if the tensors have other bits."""
    return crc32(map(as_bytes, tensors))


def as_bytes(tensor: Tensor) -> Tensor:
    """The memory of a tensor, flat, on the CPU."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)


def finite(tensors: Sequence[Tensor]) -> bool:
    return all(all_finite(t) for t in tensors)
