"""N ranks in this process, in lock-step: experiments and thousands of tests without a cluster."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from thinwire.core.average import average
from thinwire.core.codec import Codec
from thinwire.core.inputs import check_floats, check_weights
from thinwire.core.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Begin,
    Broadcast,
    Finish,
    Op,
    PipelinedExchange,
    Rounds,
    SendRecv,
    sent_bytes,
)
from thinwire.core.route import StepInfo
from thinwire.core.slot import Slot, check_slot
from thinwire.core.stage import Stage
from thinwire.errors import CodecError, StateError, WorldError

T = TypeVar("T")


@dataclass
class Outcome:
    """The result of a simulated step.

    Args:
        means: The mean that each rank got; all are equal.
        sent: The bytes that each rank sent.
        slots: The slots for the next step.
    """

    means: list[Tensor]
    sent: list[int]
    slots: list[Slot]


def simulate(
    codec: Codec | Stage | str,
    gradients: Sequence[Tensor],
    *,
    slots: Sequence[Slot] | None = None,
    seed: int = 0,
    step: int = 0,
    reduction: str | None = None,
    weights: Tensor | None = None,
) -> Outcome:
    """Average one tensor for each rank through a codec, all ranks in this process.

    It runs the code that `average` runs over torch.distributed.

    Args:
        codec: The codec, or its text.
        gradients: One tensor for each rank, all of the same shape and type.
        slots: The slots of the step before: they hold residuals and bases, and are updated in place. None begins anew.
        seed: Seed of random rounding.
        step: The number of the step.
        reduction: `"summed"`, `"sharded"`, `"gathered"` or `"ring"`; None takes the cheapest.
        weights: The parameter's values, for codecs that compare gradients with them (`iwp`).

    Returns:
        The mean that each rank got, the bytes that each rank sent, and the slots for the next step.

    Examples:
        >>> gradients = [torch.randn(256, 512) for _ in range(4)]
        >>> outcome = thinwire.simulate("qsgd(bits=4)", gradients)
        >>> torch.equal(outcome.means[0], outcome.means[3])
        True
        >>> outcome.sent[0] < 256 * 512 * 4  # bytes
        True
    """
    codec = Codec.parse(codec)
    ranks = len(gradients)
    check_alike(gradients)
    if weights is not None:
        check_weights(weights, gradients[0])
    slots = [check_slot(slot) for slot in ([None] * ranks if slots is None else slots)]
    if len(slots) != ranks:
        raise CodecError(f"{ranks} ranks need {ranks} slots; got {len(slots)}.")
    check_slots(codec, slots)
    infos = [StepInfo(rank, ranks, seed, step, reduction) for rank in range(ranks)]
    rounds = [average(codec, g, slot, info, weights) for g, slot, info in zip(gradients, slots, infos, strict=True)]
    means, sent = run(rounds)
    return Outcome(means, sent, slots)


def check_slots(codec: Codec, slots: Sequence[Slot]) -> None:
    """Refuse slots that are damaged, or that are not of one step: the ranks would not do the same."""
    for rank, slot in enumerate(slots):
        if not isinstance(slot, Slot):
            raise CodecError(f"slots must be Slots; got a {type(slot).__name__} for rank {rank}.")
        try:
            slot.check(codec)
        except StateError as reason:
            raise StateError(f"the slot of rank {rank} is damaged: {reason}") from reason
    first = slots[0].shared(codec) if len(slots) > 1 else None
    others = [str(rank) for rank, slot in enumerate(slots[1:], 1) if slot.shared(codec) != first]
    if others:
        raise StateError(
            f"the slots of all ranks must come from the same step of the same run; those of rank {', '.join(others)}"
            " differ from that of rank 0."
        )


def check_alike(gradients: Sequence[Tensor]) -> None:
    if len(gradients) == 0:
        raise CodecError("simulate needs the gradient of at least one rank; got none.")
    first = gradients[0]
    for rank, gradient in enumerate(gradients):
        check_floats(f"the tensor of rank {rank}", gradient)
        if gradient.shape != first.shape or gradient.dtype != first.dtype:
            raise CodecError(
                f"all ranks' tensors must be alike: rank 0 has {first.dtype} {tuple(first.shape)},"
                f" rank {rank} has {gradient.dtype} {tuple(gradient.shape)}."
            )


def run(rounds: Sequence[Rounds[T]]) -> tuple[list[T], list[int]]:
    """Drive one generator a rank to its end; returns their results and the bytes each rank sent."""
    ranks = len(rounds)
    sent, results = [0] * ranks, dict[int, T]()
    replies: list[Any] = [None] * ranks
    while True:
        ops: list[Op] = []
        for rank, generator in enumerate(rounds):
            try:
                ops.append(generator.send(replies[rank]))
            except StopIteration as end:
                results[rank] = end.value
        if len(results) == ranks:
            return [results[rank] for rank in range(ranks)], sent
        if results or len({type(op) for op in ops}) > 1:
            raise WorldError(
                f"the simulated ranks disagree: {[type(op).__name__ for op in ops]}, {len(results)} ended."
            )
        replies = _perform(ops)
        for rank, op in enumerate(ops):
            if not isinstance(op, Finish):
                sent[rank] += sent_bytes(op.op if isinstance(op, Begin) else op, replies[rank], rank, ranks)


def _perform(ops: list[Any]) -> list[Any]:
    """Replies to one operation of each rank; `Begin` performs the operation at once, and its reply is the ticket."""
    if isinstance(ops[0], Begin):
        return perform([op.op for op in ops])
    if isinstance(ops[0], Finish):
        return [op.ticket for op in ops]
    return perform(ops)


def perform(ops: list[Any]) -> list[Any]:
    """The reply of every rank to one operation that all of them yielded; ranks share no memory."""
    match ops[0]:
        case AllReduce():
            totals = [reduced([op.items[i] for op in ops], ops[0].how) for i in range(len(ops[0].items))]
            return [totals, *([total.clone() for total in totals] for _ in ops[1:])]
        case AllGather():
            return [[[t.clone() for t in op.items] for op in ops] for _ in ops]
        case AllToAll():
            return [[[t.clone() for t in op.parts[rank]] for op in ops] for rank in range(len(ops))]
        case Broadcast(_, root):
            return [[t.clone() for t in ops[root].items] for _ in ops]
        case SendRecv():
            aside = [op.meanwhile() if op.meanwhile else None for op in ops]
            return [([t.clone() for t in ops[op.source].items], aside[rank]) for rank, op in enumerate(ops)]
        case PipelinedExchange():
            return _exchange(ops)
        case _:
            raise WorldError(f"no world performs {type(ops[0]).__name__}.")


def _exchange(ops: list[PipelinedExchange]) -> list[None]:
    for hop in range(len(ops[0].hops)):
        messages = [[_send(op, hop, index) for index in range(len(op.items))] for op in ops]
        for op in ops:
            for index, message in enumerate(messages[op.hops[hop].source]):
                op.on_message(hop, index, message)
    return [None] * len(ops)


def _send(op: PipelinedExchange, hop: int, index: int) -> Tensor:
    message = op.next_message(hop, index).clone()
    op.on_sent(hop, index)
    return message


def reduced(tensors: list[Tensor], how: str) -> Tensor:
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        if how == "sum":
            total += tensor
        else:
            total = torch.maximum(total, tensor) if how == "max" else torch.minimum(total, tensor)
    return total
