"""What decides whether compression pays, as one small file: a link, a machine, a model and what codecs do to it.

All times are in seconds, of the slowest rank. Everything is measured or described; nothing here measures.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from thinwire.errors import StateError

LINK_KINDS = ("reduce", "gather", "exchange")
VERSION = 1
FIRST_BUCKET = 1 << 20  # bytes of the first bucket of DDP's default
DEFAULT_BUCKETS = (FIRST_BUCKET, 25 << 20)
_TELLING = 4  # ranks: among fewer the neighbours of a broken link look broken, too
_BROKEN = 0.5  # of the median rate: below it a rank's link is called broken


@dataclass(frozen=True)
class LinkPoint:
    """One size of one kind of operation.

    Args:
        sent: Bytes that each rank sends.
        seconds: What the operation takes.
        cpu_seconds: Processor time that it takes of a rank, kernel and threads included.
    """

    sent: int
    seconds: float
    cpu_seconds: float = 0.0


@dataclass(frozen=True)
class Link:
    """A link as operations see it.

    Args:
        ranks: The number of ranks among which it was measured.
        points: For each kind (`"reduce"`: the backend's all-reduce; `"gather"`: a short exchange of messages;
            `"exchange"`: a pipelined exchange of long ones) some sizes, from short to long.
        received_mbit: For each rank, the rate in Mbit/s at which it receives from one peer; empty if not measured.
        hop_seconds: Latency of one message between two ranks; it says how the figures grow with the ranks.
    """

    ranks: int
    points: Mapping[str, tuple[LinkPoint, ...]]
    received_mbit: tuple[float, ...] = ()
    hop_seconds: float = 0.0

    def cost(self, kind: str, sent: int, ranks: int, rounds: int = 1) -> tuple[float, float, float]:
        """Seconds of latency, seconds of the wire, and seconds of processor time of one operation.

        Between measured sizes the time is interpolated, beyond them it is proportional to the bytes. What the shortest
        size takes is latency; it grows with the hops that follow one another: 2 (P - 1) of a ring all-reduce.
        """
        points = self.points[kind]
        first = points[0]
        hops = hop_count(kind, ranks) - hop_count(kind, self.ranks)
        latency = max(first.seconds + hops * self.hop_seconds, 0.0)
        seconds = _interpolated([(p.sent, p.seconds) for p in points], sent)
        cpu = _interpolated([(p.sent, p.cpu_seconds) for p in points], sent)
        return latency, max(seconds - first.seconds, 0.0), cpu

    def seconds(self, kind: str, sent: int, ranks: int | None = None) -> float:
        """What one operation of this kind and size takes."""
        return sum(self.cost(kind, sent, ranks or self.ranks)[:2])

    @property
    def bits_per_second(self) -> float:
        """The rate at which a rank sends in the longest exchange that was measured."""
        first, last = self.points["exchange"][0], self.points["exchange"][-1]
        seconds = last.seconds - first.seconds
        return 8 * (last.sent - first.sent) / seconds if seconds > 0 else math.inf

    def faults(self) -> list[str]:
        """What is wrong with the links of single ranks, each as one sentence; none of fewer than 4 ranks."""
        if len(self.received_mbit) < _TELLING:
            return []
        ordered = sorted(self.received_mbit)
        usual = ordered[len(ordered) // 2]
        return [
            f"rank {rank} receives {rate:.0f} Mbit/s where the others receive {usual:.0f}: look at its cable, switch"
            " port, and network card"
            for rank, rate in enumerate(self.received_mbit)
            if rate < _BROKEN * usual
        ]

    def scaled(self, factor: float) -> "Link":
        """The same with `factor` times the bandwidth: of another link, or of the slowest rank's (a straggler)."""
        if not factor > 0:
            raise StateError(f"a link is scaled by a factor above 0; got {factor}.")

        def point(at: LinkPoint, first: LinkPoint) -> LinkPoint:
            wire = at.seconds - first.seconds
            return replace(at, seconds=first.seconds + max(wire / factor, 0.0))

        points = {kind: tuple(point(p, those[0]) for p in those) for kind, those in self.points.items()}
        rates = tuple(rate * factor for rate in self.received_mbit)
        return replace(self, points=points, received_mbit=rates)

    @staticmethod
    def described(bits_per_second: float, latency: float, ranks: int, per_host: int = 1) -> "Link":
        """A link of this rate and one-way latency, which the `per_host` ranks of a host share.

        A ring all-reduce crosses the link of a host once; messages to each peer cross it from every rank of the host.
        """
        if not (bits_per_second > 0 and latency >= 0 and 1 <= per_host <= ranks):
            raise StateError(
                f"a link has a rate above 0, a latency of at least 0 and 1 to {ranks} ranks on a host; got"
                f" {bits_per_second:g} bit/s, {latency:g} s and {per_host}."
            )
        hop = latency + 50e-6  # a send and a receive of a process
        points = {}
        for kind in LINK_KINDS:
            outside = (ranks - per_host) / max(ranks - 1, 1)
            share = 1.0 if kind == "reduce" else per_host * outside
            start = hop_count(kind, ranks) * hop
            sizes = (1 << 10, 1 << 20, 1 << 26)
            seconds = [start + 8 * share * n / bits_per_second / 0.95 for n in sizes]  # 5 % are headers
            points[kind] = tuple(LinkPoint(n, s) for n, s in zip(sizes, seconds, strict=True))
        return Link(ranks, points, (), hop)


def hop_count(kind: str, ranks: int) -> int:
    """Messages that wait for each other in one operation: a ring for sums; the others send to all at once."""
    return {"reduce": 2 * (ranks - 1), "gather": min(ranks - 1, 1), "exchange": min(2 * (ranks - 1), 2)}[kind]


def _interpolated(points: list[tuple[int, float]], at: int) -> float:
    if len(points) == 1 or at <= points[0][0]:
        return points[0][1]
    low, high = next((pair for pair in pairwise(points) if at <= pair[1][0]), (points[-2], points[-1]))
    return low[1] + (high[1] - low[1]) * (at - low[0]) / max(high[0] - low[0], 1)


@dataclass(frozen=True)
class Machine:
    """What the ranks of one host share.

    Args:
        cores: Processors of the host.
        local_ranks: Ranks on it.
        threads: Threads that torch uses in each of them.
        device: Type of the device that trains, such as `"cpu"` or `"cuda"`.
    """

    cores: int
    local_ranks: int = 1
    threads: int = 1
    device: str = "cpu"

    @property
    def parallel(self) -> float:
        """How many of a rank's activities (backward, encoding, receiving) proceed at their measured speed at once."""
        return 1.0 if self.device != "cpu" else max(1.0, self.cores / (self.local_ranks * self.threads))

    @property
    def cpu_factor(self) -> float:
        """Seconds that pass while a rank uses one second of processor time, and the others of the host do as well."""
        return max(1.0, self.local_ranks / self.cores)


@dataclass(frozen=True)
class Layer:
    """One trained parameter, and the bucket of DDP that its gradient is in."""

    name: str
    shape: tuple[int, ...]
    bucket: int
    dtype: str = "float32"

    @property
    def numel(self) -> int:
        return torch.Size(self.shape).numel()

    @property
    def nbytes(self) -> int:
        """Bytes of its gradient."""
        size: int = getattr(torch, self.dtype).itemsize
        return self.numel * size


def bucketed(layers: Sequence[Layer], limits: Sequence[int]) -> tuple[Layer, ...]:
    """The layers, in the order of their gradients, in DDP's buckets: each type of numbers has its own.

    `limits`: bytes that fill a type's first bucket, its second one, and so on; the last limit is that of all others.
    """
    open_buckets, filled, closed = dict[str, list[Layer]](), list[list[Layer]](), Counter[str]()
    for layer in layers:
        bucket = open_buckets.setdefault(layer.dtype, [])
        bucket.append(layer)
        limit = limits[min(closed[layer.dtype], len(limits) - 1)]
        if sum(each.nbytes for each in bucket) >= limit:
            filled.append(open_buckets.pop(layer.dtype))
            closed[layer.dtype] += 1
    filled += open_buckets.values()
    return tuple(replace(layer, bucket=number) for number, bucket in enumerate(filled) for layer in bucket)


@dataclass(frozen=True)
class Model:
    """A training step without communication.

    Args:
        layers: The trained parameters, in the order in which DDP puts them into buckets.
        ready: For each bucket, when its last gradient is there, from the beginning of the step.
        step: Seconds of the whole step.
    """

    layers: tuple[Layer, ...]
    ready: tuple[float, ...]
    step: float

    @property
    def numel(self) -> int:
        return sum(layer.numel for layer in self.layers)


@dataclass(frozen=True)
class Figures:
    """What one codec does to the gradient of one layer, on this machine while all ranks of the host work.

    Args:
        before: Seconds of work before its last operation begins.
        inside: Seconds of work while that is in flight, or that could be done then.
        after: Seconds of work behind it.
        error: |x - Q(x)| / |x| of one step, without what error feedback brings later; infinite if nothing is known of
            it, because no finite gradient was seen. Files have null then.
        bias: 1 - <Q(x), x> / <x, x>: the part of the gradient that does not arrive in this step, 0 for unbiased codecs.
        growth: Length of the residual after some steps, relative to the gradient; 0 without error feedback.
        memory: Bytes that the codec keeps between steps.
    """

    before: float
    inside: float
    after: float
    error: float = 0.0
    bias: float = 0.0
    growth: float = 0.0
    memory: int = 0

    @property
    def seconds(self) -> float:
        return self.before + self.inside + self.after


@dataclass(frozen=True)
class Profile:
    """All that a prediction needs.

    Args:
        link: The link of the process group.
        machine: The host.
        model: The training step.
        codecs: For each codec, as text, and each layer, by name, what it does; `none` is implied.
        ranks: The number of ranks that train.
        steps_measured: Steps of training that were looked at; 0 for a description.
    """

    link: Link
    machine: Machine
    model: Model
    codecs: Mapping[str, Mapping[str, Figures]] = field(default_factory=dict)
    ranks: int = 1
    steps_measured: int = 0

    def figures(self, codec: str, layer: str) -> Figures:
        """What a codec does to a layer; none costs nothing beside its sum."""
        if codec == "none":
            return Figures(0.0, 0.0, 0.0)
        try:
            return self.codecs[codec][layer]
        except KeyError:
            known = ", ".join(self.codecs) or "none"
            raise StateError(
                f"the profile has no figures of {codec} for {layer}; measured were {known}. Measure with this codec"
                " among the candidates."
            ) from None

    def save(self, path: str | Path) -> None:
        Path(path).write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")

    def to_dict(self) -> dict[str, Any]:
        """Numbers, texts, lists and mappings only; `reading.read_profile` reads them."""
        content = asdict(self)
        for of_layers in content["codecs"].values():
            for figures in of_layers.values():
                figures["error"] = figures["error"] if math.isfinite(figures["error"]) else None
        return {"thinwire_profile": VERSION, **content}
