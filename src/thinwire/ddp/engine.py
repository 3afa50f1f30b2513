"""What the DDP hook and the hand-written loop share: plan, slots, steps, and the rounds of a set of gradients."""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from thinwire.core.average import Turn, average
from thinwire.core.codec import Codec
from thinwire.core.ops import AllReduce, Rounds
from thinwire.core.plan import Decision, Plan
from thinwire.core.slot import Slot
from thinwire.core.together import together
from thinwire.ddp.meter import Meter
from thinwire.errors import WorldError
from thinwire.worlds.distributed import Distributed


@dataclass
class Piece:
    """One parameter's gradient on its way: averaged in place."""

    name: str
    gradient: Tensor
    weights: Tensor


@dataclass
class Engine:
    """Averages named gradients as a plan says, and remembers what has to be remembered between steps."""

    plan: Plan
    decisions: dict[str, Decision]
    seed: int = 0
    start: int = 0
    step: int = 0
    slots: dict[str, Slot] = field(default_factory=dict)
    loss_scale: float = 1.0
    meter: Meter = field(default_factory=Meter)

    @staticmethod
    def of(plan: Plan, parameters: Iterable[tuple[str, Tensor]], seed: int = 0, start: int = 0) -> "Engine":
        return Engine(plan, {d.name: d for d in plan.decisions(parameters)}, seed, start)

    def use(self, plan: Plan, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Another plan from the next step on; what is held for a parameter stays held."""
        self.plan = plan
        self.decisions = {d.name: d for d in plan.decisions(parameters)}
        held = {name: slot.residual for name, slot in self.slots.items() if slot.residual is not None}
        self.slots = {name: Slot(residual=residual) for name, residual in held.items()}

    def codec(self, name: str) -> Codec:
        """The codec of a parameter in this step."""
        return Codec() if self.step < self.start else self.decisions[name].codec

    def average(self, pieces: Sequence[Piece], world: Distributed, whole: Tensor | None = None) -> None:
        """Replace every piece's gradient by its mean over the ranks.

        `whole` is the flat buffer behind all pieces, if there is one: without compression it travels as it is.
        """
        plain = [p for p in pieces if not self.codec(p.name).working]
        coded = [p for p in pieces if self.codec(p.name).working]
        rounds: list[Rounds[Any]] = [self._rounds(piece, world) for piece in coded]
        if whole is not None and not coded:
            rounds.append(_plain_rounds(whole, world.ranks))
            plain = []
        elif plain:
            rounds.append(_plain_rounds(torch.cat([p.gradient.reshape(-1) for p in plain]), world.ranks))
        with self.meter.timing(world):
            results = world.drive(together(rounds))
        for piece, mean in zip(coded, results, strict=False):
            piece.gradient.copy_(mean.view_as(piece.gradient))
        if plain:
            _scatter(plain, results[-1])
        self._note(pieces, coded, world)

    def _rounds(self, piece: Piece, world: Distributed) -> Rounds[Tensor]:
        slot = self.slots.setdefault(piece.name, Slot())
        # a seed for each parameter: equal positions of different parameters must not draw alike
        seed = self.seed * 2**32 + zlib.crc32(piece.name.encode())
        turn = Turn(world.rank, world.ranks, seed, self.step, measure=self.meter.measures(self.step))
        return average(self.codec(piece.name), piece.gradient, slot, turn, piece.weights)

    def _note(self, pieces: Sequence[Piece], coded: Sequence[Piece], world: Distributed) -> None:
        compressed = {p.name for p in coded}
        for piece in pieces:
            codec = str(self.codec(piece.name))
            notes = self.slots[piece.name].notes if piece.name in compressed else {}
            self.meter.note(codec, piece.gradient.numel(), notes)

    def rescale(self, loss_scale: float) -> None:
        """Follow a changed loss scale: residuals were measured in units of the old one."""
        if loss_scale != self.loss_scale and loss_scale > 0:
            for slot in self.slots.values():
                slot.rescale(loss_scale / self.loss_scale)
            self.loss_scale = loss_scale

    def compressed_share(self) -> float:
        """Share of all numbers that will travel compressed."""
        total = sum(d.numel for d in self.decisions.values())
        return sum(d.numel for d in self.decisions.values() if d.codec.working) / total if total else 0.0


def _plain_rounds(flat: Tensor, ranks: int) -> Rounds[Tensor]:
    """Divide, then sum: the order of plain DDP, so that results are equal bit for bit."""
    (total,) = yield AllReduce([flat.div_(ranks)])
    averaged: Tensor = total
    if averaged.data_ptr() != flat.data_ptr():
        flat.copy_(averaged)
    return flat


def _scatter(pieces: Sequence[Piece], flat: Tensor) -> None:
    for piece, part in zip(pieces, torch.split(flat, [p.gradient.numel() for p in pieces]), strict=True):
        piece.gradient.copy_(part.view_as(piece.gradient))


def check_agreement(world: Distributed, facts: Mapping[str, Any]) -> None:
    """Compare facts that must be equal on all ranks, and name the ranks and the first difference if they are not."""
    everyone: list[Any] = [None] * world.ranks
    torch.distributed.all_gather_object(everyone, dict(facts), group=world.group)
    for what, mine in everyone[0].items():
        others = [rank for rank in range(world.ranks) if everyone[rank].get(what) != mine]
        if others:
            theirs = everyone[others[0]].get(what)
            raise WorldError(
                f"the ranks disagree on {what}: rank 0 has {_short(mine, theirs)}, rank{'s' if len(others) > 1 else ''}"
                f" {', '.join(map(str, others))} {'have' if len(others) > 1 else 'has'} {_short(theirs, mine)};"
                " start all ranks with the same code, model and arguments."
            )


def _short(value: Any, other: Any) -> str:
    """A value in a message; of two lists only what differs."""
    if isinstance(value, list) and isinstance(other, list):
        differing = [v for v in value if v not in other]
        return f"{differing[0]}" if differing else f"{len(value)} entries"
    return f"{value!r}"
