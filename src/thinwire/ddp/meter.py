"""What a step cost: bytes, rounds, seconds, and how much was lost."""

import threading
import time
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

from thinwire.core.ops import Begin, Collective, Finish, Rounds, received_bytes, rounds_in, sent_bytes
from thinwire.ddp.metrics import CodecMetrics, StepMetrics
from thinwire.worlds.distributed import Counters

T = TypeVar("T")


@dataclass
class Tally:
    """Sums over the parameters that share a codec, or over all.

    Seconds of encoding are those before a parameter's last message leaves, seconds of decoding those after its last
    reply. Parameters share collectives: their time is split in proportion to the bytes sent.
    """

    parameters: int = 0
    elements: int = 0
    elements_sent: float = 0.0
    lost: float = 0.0
    given: float = 0.0
    sent: int = 0
    received: int = 0
    rounds: int = 0
    encode_seconds: float = 0.0
    communicate_seconds: float = 0.0
    decode_seconds: float = 0.0

    def add(self, other: "Tally") -> None:
        sums = vars(self)  # a step adds one for every parameter: `fields` would take several times as long
        for name, value in vars(other).items():
            sums[name] += value

    def metrics(self, ranks: int, ways: int) -> CodecMetrics:
        plain = 4 * ways * (ranks - 1) * -(-self.elements // ranks)
        return CodecMetrics(
            parameters=self.parameters,
            elements=self.elements,
            element_ratio=self.elements / self.elements_sent if self.elements_sent else 1.0,
            bytes_sent=self.sent,
            bytes_received=self.received,
            wire_ratio=plain / self.sent if self.sent else 1.0,
            rounds=self.rounds,
            relative_error=(self.lost / self.given) ** 0.5 if self.given > 0 else None,
            encode_seconds=self.encode_seconds,
            communicate_seconds=self.communicate_seconds,
            decode_seconds=self.decode_seconds,
        )


class Entry(NamedTuple):
    """The cost of one average; its communication time is known only for the whole bucket."""

    codec: str
    tally: Tally


def metered(rounds: Rounds[T], tally: Tally, rank: int, ranks: int) -> Generator[Any, Any, T]:
    """The same rounds; their bytes and the time between them are added to the tally."""
    reply: Any = None
    begun: dict[int, Collective] = {}  # by ticket
    while True:
        began = time.perf_counter()
        try:
            op = rounds.send(reply)
        except StopIteration as end:
            tally.decode_seconds += time.perf_counter() - began
            result: T = end.value
            return result
        tally.encode_seconds += time.perf_counter() - began
        reply = yield op
        tally.rounds += rounds_in(op)
        if isinstance(op, Begin):
            begun[id(reply)] = op.op
        else:
            done = begun.pop(id(op.ticket)) if isinstance(op, Finish) else op
            tally.sent += sent_bytes(done, reply, rank, ranks)
            tally.received += received_bytes(done, reply, rank, ranks)


@dataclass
class Step:
    """One step of training, as far as gradients are concerned."""

    groups: dict[str, Tally] = field(default_factory=dict)
    spent: Counters = field(default_factory=Counters)
    inside: int = 0  # bytes to other ranks on the same host

    def metrics(self, step: int, ranks: int, exposed: float, ways: int = 2) -> StepMetrics:
        total = Tally()
        for tally in self.groups.values():
            total.add(tally)
        total.sent, total.received = self.spent.sent, self.spent.received
        total.rounds, total.communicate_seconds = self.spent.rounds, self.spent.seconds
        codecs = {codec: tally.metrics(ranks, ways) for codec, tally in self.groups.items()}
        whole = vars(total.metrics(ranks, ways))
        return StepMetrics(step=step, exposed_seconds=exposed, bytes_inside=self.inside, codecs=codecs, **whole)


class Meter:
    """Collects the current step and keeps the last complete one, and the last one whose error was measured."""

    def __init__(self, every: int = 10, ways: int = 2) -> None:
        """`ways`: how often a plain fp32 collective sends an element: an all-reduce 2 times, a reduce-scatter once."""
        self.every, self.ways = every, ways
        self.lock = threading.Lock()  # several lanes add their buckets at the same time
        self.current = Step()
        self.last: StepMetrics | None = None
        self.last_measured: StepMetrics | None = None

    def measures(self, step: int) -> bool:
        """Whether the relative error is measured in this step (it costs one more decoding)."""
        return self.every > 0 and step % self.every == 0

    def add(self, before: Counters, after: Counters, entries: Iterable[Entry]) -> None:
        """Add one bucket: what the world spent on it, and what each of its codecs did."""
        spent = {item.name: getattr(after, item.name) - getattr(before, item.name) for item in fields(Counters)}
        groups: dict[str, Tally] = {}
        for entry in entries:
            group = groups.setdefault(entry.codec, Tally())
            rounds = max(group.rounds, entry.tally.rounds)  # its parameters share their rounds
            group.add(entry.tally)
            group.rounds = rounds
        sent = sum(group.sent for group in groups.values())
        with self.lock:
            for name, amount in spent.items():
                setattr(self.current.spent, name, getattr(self.current.spent, name) + amount)
            for codec, group in groups.items():
                group.communicate_seconds = spent["seconds"] * (group.sent / sent if sent else 1 / len(groups))
                self.current.groups.setdefault(codec, Tally()).add(group)

    def add_inside(self, sent: int) -> None:
        """Add bytes that this rank sent to others on its host."""
        with self.lock:
            self.current.inside += sent

    def close(self, step: int, ranks: int, exposed: float) -> StepMetrics:
        """End the step and return its metrics."""
        self.last = self.current.metrics(step, ranks, exposed, self.ways)
        if self.last.relative_error is not None:
            self.last_measured = self.last
        self.current = Step()
        return self.last
