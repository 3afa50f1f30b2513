"""What the DDP hook and `average_gradients` share: the plan, the slots, and the average of a set of gradients."""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from thinwire.core.average import average
from thinwire.core.coalesced import coalesced
from thinwire.core.codec import Codec
from thinwire.core.ops import AllReduce, Begin, Finish, Rounds
from thinwire.core.plan import Decision, Plan
from thinwire.core.profiling import span
from thinwire.core.route import StepInfo
from thinwire.core.slot import Slot
from thinwire.ddp.hosts import Share
from thinwire.ddp.meter import Entry, Meter, Tally, metered
from thinwire.ddp.metrics import StepMetrics
from thinwire.kernels.shares import all_true, divided, finiteness
from thinwire.worlds.distributed import Counters, Distributed

_PLAIN = Codec()


@dataclass
class NamedGradient:
    """One parameter's gradient, which is averaged in place."""

    name: str
    gradient: Tensor
    weights: Tensor


@dataclass
class Engine:
    """Averages named gradients as a plan says, and keeps the state between steps.

    `dial` is the share of their usual loss that stages with a dial may cause (`core.schedule`).
    `skips`: training skips a step whose gradients are not finite, so that what the step delivered goes back into the
    residuals. `drops_idle`: DDP drops the average of a parameter that no rank used, so that a rank without a gradient
    must keep its residual. `run` names this run in its checkpoints. `reduction`: how sums are taken;
    None takes the cheapest for each tensor. `overflow`: something in this step was not finite, and training skips it.
    `share`: what this rank carries between hosts; None: all, as every rank.
    """

    plan: Plan
    decisions: dict[str, Decision]
    seed: int = 0
    start: int = 0
    step: int = 0
    slots: dict[str, Slot] = field(default_factory=dict)
    loss_scale: float = 1.0
    dial: float = 1.0
    skips: bool = False
    drops_idle: bool = False
    run: str = ""
    reduction: str | None = None
    share: Share | None = None
    meter: Meter = field(default_factory=Meter)
    overflow: bool = False
    _finite: list[bool | Tensor] = field(default_factory=list)
    _delivered: list[NamedGradient] = field(default_factory=list)

    @staticmethod
    def of(plan: Plan, parameters: Iterable[tuple[str, Tensor]], seed: int = 0, start: int = 0) -> "Engine":
        return Engine(plan, Engine.decided(plan, parameters), seed, start)

    @staticmethod
    def decided(plan: Plan, parameters: Iterable[tuple[str, Tensor]]) -> dict[str, Decision]:
        """What the plan decides for each name."""
        return {d.name: d for d in plan.decisions(parameters)}

    def use(self, plan: Plan, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Use another plan from the next step on; residuals are kept."""
        self.plan = plan
        self.decisions = self.decided(plan, parameters)
        kept: dict[str, Slot] = {}
        for name, slot in self.slots.items():
            if name in self.decisions and slot.chain == str(self.decisions[name].codec):
                kept[name] = slot
            elif slot.residual_data is not None:
                kept[name] = Slot(residual_data=slot.residual)
        self.slots = kept

    def codec(self, name: str) -> Codec:
        """The codec of a parameter in this step."""
        return _PLAIN if self.step < self.start else self.decisions[name].codec

    def codecs(self) -> set[Codec]:
        """The codecs of all parameters after the first `start` steps."""
        return {decision.codec for decision in self.decisions.values()}

    def explained(self) -> list[Decision]:
        """The plan's decisions, and what stages have decided since from the gradients."""
        slots = {name: self.slots.get(name, Slot()) for name in self.decisions}
        return [d._replace(why="; ".join([d.why, *slots[name].decided(d.codec)])) for name, d in self.decisions.items()]

    def average(self, pieces: Sequence[NamedGradient], world: Distributed, whole: Tensor | None = None) -> None:
        """Replace every piece's gradient by its mean over the ranks.

        `whole` is the flat buffer of all pieces, if there is one: without compression it is summed as it is.
        """
        coded = [p for p in pieces if self._is_coded(p.name)]
        plain = [p for p in pieces if not self._is_coded(p.name)]
        bundle_numel = sum(p.gradient.numel() for p in coded)
        tallies = [Tally(1, p.gradient.numel()) for p in coded]
        groups = [[whole]] if whole is not None and not coded else alike([p.gradient for p in plain])
        # beside sums of the backend, what is plain shares a collective; beside messages, it is summed at the same time
        aside = all(self.codec(p.name).coders for p in coded)
        tallies += [Tally(0, numbers, numbers) for numbers in (sum(t.numel() for t in group) for group in groups)]
        work: list[Rounds[Any]] = [self._rounds(piece, world, bundle_numel) for piece in coded]
        work += [plain_rounds(group, world.ranks, bool(coded) and aside) for group in groups]
        rounds = [metered(r, tally, world.rank, world.ranks) for r, tally in zip(work, tallies, strict=True)]
        before = world.counters()
        with span("average", names_of(pieces)):
            world.drive(coalesced(rounds[len(coded) :] + rounds[: len(coded)]))
        self._note_finite(coded, groups)
        self._count(before, world, coded, plain, tallies)

    def _is_coded(self, name: str) -> bool:
        """Whether it has a codec, or a residual of an earlier codec, which is delivered in its next step."""
        slot = self.slots.get(name)
        return bool(self.codec(name).stages) or (slot is not None and slot.residual_data is not None)

    def _slot(self, name: str) -> Slot:
        return self.slots.setdefault(name, Slot())

    def _info(self, name: str, world: Distributed, reduction: str | None, bundle_numel: int = 0) -> StepInfo:
        # a seed for each parameter: equal positions of different parameters must not draw alike
        seed = self.seed * 2**32 + zlib.crc32(name.encode())
        measure = self.meter.measures(self.step)
        return StepInfo(world.rank, world.ranks, seed, self.step, reduction, bundle_numel, measure, world.buffers)

    def _rounds(self, piece: NamedGradient, world: Distributed, bundle_numel: int) -> Rounds[Tensor]:
        slot = self._slot(piece.name)
        slot.dial = self.dial
        if not piece.gradient.is_cpu:  # a restored slot, or one of another lane, has memory of another stream
            stream = torch.get_device_module(piece.gradient.device).current_stream(piece.gradient.device)
            slot.record_stream(stream)
            piece.weights.record_stream(stream)
        info = self._info(piece.name, world, self.reduction, bundle_numel)
        rounds = average(self.codec(piece.name), piece.gradient, slot, info, piece.weights, out=piece.gradient)
        if self.drops_idle and slot.residual_data is not None and not bool(piece.gradient.any()):
            return _saving_residual(rounds, slot)
        return rounds

    def _note_finite(self, coded: Sequence[NamedGradient], groups: Sequence[Sequence[Tensor]]) -> None:
        """Note what goes back into the residuals if the step is skipped."""
        if not self.skips:
            return
        self._delivered += [p for p in coded if self.slots[p.name].residual_data is not None]
        self._finite += [self.slots[p.name].finite for p in coded]
        self._finite += [finiteness(t) for group in groups for t in group]

    def _count(
        self,
        before: Any,
        world: Distributed,
        coded: Sequence[NamedGradient],
        plain: Sequence[NamedGradient],
        tallies: Sequence[Tally],
    ) -> None:
        entries = []
        for piece, tally in zip(coded, tallies, strict=False):
            notes = self.slots[piece.name].notes
            tally.elements_sent = notes.get("elements_sent", tally.elements)
            tally.lost, tally.given = notes.get("lost", 0.0), notes.get("given", 0.0)
            entries.append(Entry(str(self.codec(piece.name)), tally))
        for tally in tallies[len(coded) :]:
            entries.append(Entry(str(_PLAIN), tally))
        if plain:
            entries[-1].tally.parameters += len(plain)
        self.meter.add(before, world.counters(), entries)

    def note_plain(self, parameters: Sequence[tuple[str, Tensor]], ranks: int, waited: float) -> None:
        """Count a step that DDP averaged without compression; its bytes are those of the fewest all-reduces."""
        groups = alike(p for _, p in parameters)
        numbers, sent = sum(p.numel() for _, p in parameters), sum(AllReduce(group).sent(0, ranks) for group in groups)
        rounds = len(groups) if ranks > 1 else 0
        tally = Tally(len(parameters), numbers, numbers, sent=sent, received=sent, rounds=rounds)
        self.meter.add(Counters(), Counters(sent, sent, rounds, waited), [Entry(str(_PLAIN), tally)])

    def end_step(self, ranks: int, exposed: float) -> StepMetrics:
        """End the step and return its metrics. If training skips it, what it delivered goes back into the residuals."""
        # one wait for the device at most, and only where a GradScaler waits for it, too
        if self.overflow or (self._delivered and not all_true(self._finite)):
            for piece in self._delivered:
                slot = self.slots[piece.name]
                if slot.finite and (residual := slot.residual) is not None:
                    slot.residual = residual.add_(divided(piece.gradient.reshape(-1).float(), ranks))
        self.overflow, self._finite, self._delivered = False, [], []
        self.step += 1
        return self.meter.close(self.step - 1, ranks, exposed)

    def overflows(self) -> bool:
        """Whether something in this step was not finite; it waits for the device."""
        return self.overflow or not all_true(self._finite)

    def carries(self, name: str) -> bool:
        """Whether this rank averages this parameter with other ranks."""
        return self.share is None or name in self.share.names

    def rescale(self, loss_scale: float) -> None:
        """Follow a changed loss scale: residuals were measured in units of the old one."""
        if loss_scale != self.loss_scale and loss_scale > 0:
            for slot in self.slots.values():
                slot.rescale(loss_scale / self.loss_scale)
            self.loss_scale = loss_scale

    def has_codecs(self) -> bool:
        """Whether any parameter has a codec."""
        return any(d.codec.stages for d in self.decisions.values())


def names_of(pieces: Sequence[NamedGradient]) -> str:
    """The names of gradients that are averaged together; of many, the first ones."""
    return ", ".join(piece.name for piece in pieces[:4]) + (", ..." if len(pieces) > 4 else "")


def _saving_residual(rounds: Rounds[Tensor], slot: Slot) -> Rounds[Tensor]:
    """Average the gradient without the residual, and keep the residual."""
    held, slot.residual = slot.residual, None
    mean = yield from rounds
    slot.residual = _sum(held, slot.residual)
    return mean


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b


def alike(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Groups of tensors that can share one all-reduce."""
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for t in tensors:
        groups.setdefault((t.dtype, t.device), []).append(t)
    return list(groups.values())


def plain_rounds(tensors: Sequence[Tensor], ranks: int, aside: bool) -> Rounds[None]:
    """Divide, then sum: the order of plain DDP, so that results have equal bits. `aside`: other rounds overlap."""
    flat = [t.reshape(-1) for t in tensors]
    for t in flat:
        divided(t, ranks, out=t)
    summing = AllReduce(flat)
    if aside:
        ticket = yield Begin(summing)
        totals = yield Finish(ticket)
    else:
        totals = yield summing
    if len(tensors) > 1 or totals[0].data_ptr() != tensors[0].data_ptr():
        torch._foreach_copy_(list(tensors), [total.view_as(t) for t, total in zip(tensors, totals, strict=True)])
