"""Steps between outer steps over thin links, against the same steps without any communication.

Every contender has a copy of the model and an optimizer of its own, and they take turns of one round: it begins when
nothing is under way, and what it sends is applied in it. This module is also the ranks' program.
"""

import copy
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from rich.table import Table
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from thinwire import OuterSettings, attach_outer
from thinwire.errors import CodecError
from thinwire.outer.settings import preset_name
from thinwire_lab.bench.collectives import largest
from thinwire_lab.bench.launching import common_moment, launched, report, work
from thinwire_lab.bench.results import BenchError, Target, at_most, beside_target, columns
from thinwire_lab.recipes import build_model
from thinwire_lab.recipes.place import Place
from thinwire_lab.recipes.recipe import loss_of

ALONE, DDP = "alone", "ddp"
LINKS = ("50mbit", "100mbit")
CONTENDERS = (
    "diloco(every=20)",
    "sparseloco(every=20)",
    "sparseloco(every=20, overlap=10)",
    "streaming-diloco(every=20, fragments=2, overlap=5)",
)
STEP_TARGET = 1.05  # of a step without communication, if the exchange fits into the overlap
DDP_STEPS = 3
WIDTH = 192  # of the GPT of two layers, which then has a million parameters: these hosts share one machine
_SPENT = ("encode_seconds", "communicate_seconds", "decode_seconds")


@dataclass(frozen=True)
class OuterRow:
    """One contender: the mean step of its rounds, of the slowest rank; medians over turns."""

    kind: ClassVar[str] = "outer"

    model: str
    parameters: int
    link: str
    ranks: int
    contender: str
    seconds: float
    step_ratio: float  # to steps without communication
    exchange_seconds: float | None  # the longest exchange of a fragment
    overlap_seconds: float | None  # the inner steps that it may take
    exposed_seconds: float | None  # in a round, summed over its fragments
    bytes_per_step: float | None
    target: Target | None

    @property
    def title(self) -> str:
        return f"{self.contender}, {self.model}, {self.link}"

    def judged(self) -> list[tuple[str, float | None, Target | None]]:
        return [("step / without communication", self.step_ratio, self.target)]


def bench_outer(
    link: str,
    hosts: int = 4,
    contenders: Sequence[str] = CONTENDERS,
    turns: int = 3,
    width: int = WIDTH,
    batch: int = 2,
    tell: Callable[[str], None] | None = None,
) -> list[OuterRow]:
    """All contenders in one launch, with plain DDP and steps without communication beside them."""
    if hosts < 2:
        raise BenchError(f"weights are exchanged by at least 2 hosts, not {hosts}; give --hosts 2 or more.")
    for text in contenders:
        if preset_name(text) is None:
            raise CodecError(f"{text!r} is no preset of outer steps; write diloco(codec='{text}', every=20).")
        OuterSettings.of(text)
    job = {"contenders": list(contenders), "turns": turns, "width": width, "batch": batch}
    found = launched("thinwire_lab.bench.outer", job, hosts, link, tell)
    about = {"model": f"gpt-tiny(width={width})", "parameters": found["parameters"], "link": link, "ranks": hosts}
    return outer_rows(found["rows"], about)


def outer_rows(found: Sequence[Mapping[str, Any]], about: Mapping[str, Any]) -> list[OuterRow]:
    """Figures of the workers, set against those of steps without communication among them."""
    alone = next(row["seconds"] for row in found if row["contender"] == ALONE)
    rows = []
    for row in found:
        figures = {name: value for name, value in row.items() if name != "overlap"}
        room = row["overlap"] * alone
        fits = row["exchange_seconds"] is not None and 0 < row["exchange_seconds"] <= room
        figures |= {"step_ratio": row["seconds"] / alone, "overlap_seconds": room if row["overlap"] else None}
        rows.append(OuterRow(**about, **figures, target=at_most(STEP_TARGET) if fits else None))
    return rows


class Runner:
    """One contender's copy of the model, and what its rounds took."""

    def __init__(self, text: str, model: nn.Module) -> None:
        self.text, self.model = text, copy.deepcopy(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.settings = OuterSettings.of(text) if preset_name(text) is not None else None
        if text == DDP:
            self.model = DistributedDataParallel(self.model)
        self.handle = attach_outer(self.model, self.optimizer, text) if self.settings is not None else None
        self.seconds: list[float] = []
        self.rounds: list[Any] = []
        if self.handle is not None:
            self.handle.on_step.append(self.rounds.append)

    @property
    def turn_steps(self) -> int:
        return DDP_STEPS if self.text == DDP else 20 if self.settings is None else self.settings.every

    def settle(self, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        """A round that does not count, and then as many steps as an exchange may take: then nothing is under way."""
        overlap = self.settings.overlap if self.settings is not None else 0
        self.train(batches, self.turn_steps + overlap)
        self.rounds.clear()

    def train(self, batches: Sequence[tuple[Tensor, Tensor]], steps: int) -> float:
        """Steps from when all ranks begin; the mean seconds of one on this rank."""
        began = common_moment()
        for step in range(steps):
            self.optimizer.zero_grad()
            loss_of(self.model, *batches[step % len(batches)]).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        return (time.perf_counter() - began) / steps

    def figures(self) -> dict[str, Any]:
        rounds, turns = self.rounds, max(1, len(self.seconds))
        taken = [sum(getattr(r, name) for name in _SPENT) for r in rounds]
        return {
            "contender": self.text,
            "seconds": float(statistics.median(largest(self.seconds))),
            "overlap": self.settings.overlap if self.settings is not None else 0,
            "exchange_seconds": max(taken) if taken else None,
            "exposed_seconds": sum(r.exposed_seconds for r in rounds) / turns if rounds else None,
            "bytes_per_step": sum(r.bytes_sent for r in rounds) / turns / self.turn_steps if rounds else None,
        }


def measure(job: dict[str, Any], place: Place) -> dict[str, Any]:
    """On every rank: a turn of each contender, then the next turn."""
    torch.manual_seed(0)
    model = build_model("gpt-tiny", context=64, width=job["width"])
    random = torch.Generator().manual_seed(place.rank)
    texts = [torch.randint(256, (job["batch"], 65), generator=random) for _ in range(4)]
    batches = [(text[:, :-1], text[:, 1:]) for text in texts]
    runners = [Runner(text, model) for text in (ALONE, *job["contenders"], DDP)]
    for runner in runners:
        report(place, f"{runner.text}: warm-up")
        runner.settle(batches)
    for turn in range(job["turns"]):
        for runner in runners:
            report(place, f"turn {turn + 1} of {job['turns']}: {runner.text}")
            runner.seconds.append(runner.train(batches, runner.turn_steps))
    rows = [runner.figures() for runner in runners]
    for runner in runners:
        if runner.handle is not None:
            runner.handle.close()
    return {"parameters": sum(p.numel() for p in model.parameters()), "rows": rows}


def outer_table(rows: Sequence[OuterRow]) -> Table:
    """For the terminal; a target that is missed is red."""
    first = rows[0]
    title = f"{first.model}, {first.parameters:,} parameters, {first.ranks} ranks, link {first.link}: mean step"
    names = ("contender", "step ms", "/ alone", "exchange ms", "overlap ms", "exposed ms a round", "bytes a step")
    table = columns(Table(title=title, title_justify="left"), names)
    for row in rows:
        times = (row.exchange_seconds, row.overlap_seconds, row.exposed_seconds)
        table.add_row(
            row.contender,
            f"{row.seconds * 1e3:.1f}",
            beside_target(row.step_ratio, row.target),
            *("" if value is None else f"{value * 1e3:.0f}" for value in times),
            "" if row.bytes_per_step is None else f"{row.bytes_per_step:,.0f}",
        )
    return table


if __name__ == "__main__":
    work(sys.argv[1:], measure)
