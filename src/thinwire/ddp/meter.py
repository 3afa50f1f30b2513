"""What a step cost: bytes, rounds, seconds, and how much was lost."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from thinwire.worlds.distributed import Distributed


@dataclass
class Tally:
    """Sums over the parameters that share a codec, or over all."""

    parameters: int = 0
    elements: int = 0
    elements_sent: float = 0.0
    lost: float = 0.0
    given: float = 0.0

    def add(self, elements: int, notes: dict[str, float]) -> None:
        self.parameters += 1
        self.elements += elements
        self.elements_sent += notes.get("elements_sent", elements)
        self.lost += notes.get("lost", 0.0)
        self.given += notes.get("given", 0.0)

    def to_dict(self) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "parameters": self.parameters,
            "elements": self.elements,
            "element_ratio": self.elements / self.elements_sent if self.elements_sent else 1.0,
        }
        if self.given > 0:
            shown["relative_error"] = (self.lost / self.given) ** 0.5
        return shown


@dataclass
class Step:
    """One step of training, as far as gradients are concerned."""

    groups: dict[str, Tally] = field(default_factory=dict)
    sent: int = 0
    received: int = 0
    rounds: int = 0
    encode_seconds: float = 0.0
    communicate_seconds: float = 0.0
    decode_seconds: float = 0.0
    exposed_seconds: float = 0.0

    def to_dict(self, step: int, ranks: int) -> dict[str, Any]:
        total = Tally()
        for tally in self.groups.values():
            for name in ("parameters", "elements", "elements_sent", "lost", "given"):
                setattr(total, name, getattr(total, name) + getattr(tally, name))
        plain = 8 * (ranks - 1) * -(-total.elements // ranks)
        return {
            "step": step,
            **total.to_dict(),
            "bytes_sent": self.sent,
            "bytes_received": self.received,
            "wire_ratio": plain / self.sent if self.sent else 1.0,
            "rounds": self.rounds,
            "encode_seconds": self.encode_seconds,
            "communicate_seconds": self.communicate_seconds,
            "decode_seconds": self.decode_seconds,
            "exposed_seconds": self.exposed_seconds,
            "codecs": {codec: tally.to_dict() for codec, tally in self.groups.items()},
        }


class Meter:
    """Collects the current step and keeps the last complete one."""

    def __init__(self, every: int = 10) -> None:
        self.every = every
        self.lock = threading.Lock()  # buckets of several lanes are booked at the same time
        self.current = Step()
        self.last: dict[str, Any] = {}

    def measures(self, step: int) -> bool:
        """Whether the relative error is measured in this step (it costs one more decoding)."""
        return self.every > 0 and step % self.every == 0

    @contextmanager
    def timing(self, world: Distributed) -> Iterator[None]:
        """Book what the world does meanwhile."""
        before = world.counters()
        began = time.perf_counter()
        yield
        spent, after = time.perf_counter() - began, world.counters()
        communicate = after.seconds - before.seconds
        encode = after.first_seconds - before.first_seconds
        with self.lock:
            now = self.current
            now.sent += after.sent - before.sent
            now.received += after.received - before.received
            now.rounds += after.rounds - before.rounds
            now.communicate_seconds += communicate
            now.encode_seconds += encode
            now.decode_seconds += max(0.0, spent - communicate - encode)

    def note(self, codec: str, elements: int, notes: dict[str, float]) -> None:
        with self.lock:
            self.current.groups.setdefault(codec, Tally()).add(elements, notes)

    def close(self, step: int, ranks: int, exposed: float) -> dict[str, Any]:
        """End the step and return its figures."""
        self.current.exposed_seconds = exposed
        self.last = self.current.to_dict(step, ranks)
        self.current = Step()
        return self.last
