"""One step of training as a Chrome trace: what each rank computes, encodes, sends and waits for, and when.

Nothing in the library knows of it: for one step the lanes of a handle get a world that looks at the clock, and the
stages' methods are wrapped. Ranks on one machine share the clock of `perf_counter`, so that their times compare.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any, NamedTuple, TypeVar

from thinwire import Handle, Stage
from thinwire.core.ops import Begin, Finish, Hops, Op, Rounds, sent_bytes
from thinwire.kernels.quantise import Coder
from thinwire.worlds.distributed import Distributed
from thinwire.worlds.journeys import Journey, Parcel

T = TypeVar("T")

MAIN = "training"
CODING = {"encode": "encode", "encode_into": "encode", "decode": "decode", "decode_from": "decode"}
BLOCKS = {"encode_block": "encode", "decode_block": "decode"}
PREPARING = {"writer": "encode", "reader": "decode"}  # what they return does the work


class Event(NamedTuple):
    """Something that lasted, on a track of its rank."""

    track: str
    name: str
    began: float
    ended: float
    about: dict[str, Any]


class Recorder:
    """Collects the events of one rank; the track of an event is that of the thread it happens in."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.tracks: dict[int, str] = {threading.get_ident(): MAIN}
        self.ready: float | None = None  # when the last bucket was complete

    def track(self) -> str:
        return self.tracks.setdefault(threading.get_ident(), f"thread {len(self.tracks)}")

    def add(self, name: str, began: float, track: str | None = None, **about: Any) -> None:
        self.events.append(Event(track or self.track(), name, began, time.perf_counter(), about))

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.add(name, began)

    def waited(self) -> None:
        """At the end of backward: since the last bucket it only waited for averages."""
        if self.ready is not None:
            self.add("wait", self.ready)


class TracedWorld(Distributed):
    """A lane's world that notes its operations: waiting on the lane's track, flight on tracks beside it."""

    def __init__(self, world: Distributed, recorder: Recorder, lane: str) -> None:
        super().__init__(world.group)
        self._recorder, self._lane = recorder, lane
        self._begun: dict[int, float] = {}
        self._journey = partial(TracedJourney, recorder, f"{lane} wire")

    def drive(self, rounds: Rounds[T]) -> T:
        self._recorder.tracks[threading.get_ident()] = self._lane
        with self._recorder.span("buckets"):
            return super().drive(self._watched(rounds))

    def _watched(self, rounds: Rounds[T]) -> Rounds[T]:
        """The same rounds, with what they compute between operations noted."""
        reply: Any = None
        while True:
            began = time.perf_counter()
            try:
                op = rounds.send(reply)
            except StopIteration as end:
                self._recorder.add("compute", began)
                result: T = end.value
                return result
            self._recorder.add("compute", began)
            reply = yield op

    def perform(self, op: Op) -> Any:
        began = time.perf_counter()
        reply = super().perform(op)
        if isinstance(op, Begin):
            self._recorder.add("begin", began)
            self._begun[id(reply)] = began
            return reply
        if isinstance(op, Hops):  # whose parcels are noted one by one
            return reply
        self._recorder.add("wait", began)
        started = op.ticket[0] if isinstance(op, Finish) else op
        flying_since = self._begun.pop(id(op.ticket), began) if isinstance(op, Finish) else began
        sent = sent_bytes(started, reply, self.rank, self.ranks)
        self._recorder.add(type(started).__name__, flying_since, f"{self._lane} wire", bytes=sent)
        return reply


class TracedJourney(Journey):
    """Notes its waiting, and parcels from when they are made to when they have left this process."""

    def __init__(self, recorder: Recorder, wire: str, *about: Any) -> None:
        super().__init__(*about)
        self._recorder, self._wire = recorder, wire
        self._departed: dict[Parcel, tuple[float, int]] = {}

    def _leave(self, parcel: Parcel, parts: list[memoryview]) -> None:
        self._departed[parcel] = time.perf_counter(), sum(part.nbytes for part in parts)
        super()._leave(parcel, parts)

    def _let_go(self, parcel: Parcel) -> None:
        began, size = self._departed.pop(parcel)
        self._recorder.add("parcel", began, self._wire, bytes=size, to=self.op.legs[parcel.leg].to)
        super()._let_go(parcel)

    def _wait(self) -> None:
        with self._recorder.span("wait"):
            super()._wait()


@contextmanager
def traced(handle: Handle, recorder: Recorder) -> Iterator[None]:
    """Note what a handle does inside of the block."""
    hook = handle.hook
    lanes, on_bucket = hook.lanes, hook.on_bucket
    worlds = [lane.world for lane in lanes]

    def noted(bucket: Any) -> Any:
        began = time.perf_counter()
        future = on_bucket(bucket)
        recorder.add(f"queue bucket {bucket.index()}", began, numbers=bucket.buffer().numel())
        if bucket.is_last():
            recorder.ready = time.perf_counter()
        return future

    stages = {type(stage) for decision in handle.plan for stage in decision.codec.stages}
    with ExitStack() as undo:
        for kind in stages:
            undo.enter_context(_watched_stage(kind, recorder))
        for at, lane in enumerate(lanes):
            lane.world = TracedWorld(lane.world, recorder, f"lane {at}")
        hook.on_bucket = noted  # type: ignore[method-assign]
        try:
            yield
        finally:
            del hook.on_bucket  # uncovers the method
            for lane, world in zip(lanes, worlds, strict=True):
                lane.world = world


@contextmanager
def _watched_stage(kind: type[Stage], recorder: Recorder) -> Iterator[None]:
    """Wrap the methods that encode and decode, its own and inherited ones, unless they do nothing."""
    prepares = kind.writer is not Stage.writer
    if kind.block is not Stage.block:  # what works all at once calls what works on blocks
        names = BLOCKS
    else:
        names = PREPARING | {"encode": "encode", "decode": "decode"} if prepares else CODING
    works = {method: getattr(kind, method) for method in names}
    own = {method: work for method, work in works.items() if method in vars(kind)}
    watched = [method for method, work in works.items() if work is not getattr(Stage, method)]
    for method in watched:
        wrap = _noting_what_is_prepared if method in PREPARING else _noting
        setattr(kind, method, wrap(works[method], names[method], kind.name, recorder))
    try:
        yield
    finally:
        for method in watched:
            if method in own:
                setattr(kind, method, own[method])
            else:
                delattr(kind, method)


def _noting(work: Callable[..., T], name: str, stage: str, recorder: Recorder) -> Callable[..., T]:
    @wraps(work)
    def run(*arguments: Any, **options: Any) -> T:
        began = time.perf_counter()
        try:
            return work(*arguments, **options)
        finally:
            recorder.add(name, began, stage=stage)

    return run


def _noting_what_is_prepared(
    prepare: Callable[..., Coder | None], name: str, stage: str, recorder: Recorder
) -> Callable[..., Coder | None]:
    @wraps(prepare)
    def prepared(*arguments: Any, **options: Any) -> Coder | None:
        coder = prepare(*arguments, **options)
        return None if coder is None else _noting(coder, name, stage, recorder)

    return prepared


def chrome_events(ranks: Sequence[Sequence[Event]]) -> list[dict[str, Any]]:
    """A process for each rank, a thread for each track; times in microseconds from the first event on."""
    start = min((event[2] for events in ranks for event in events), default=0.0)
    told: list[dict[str, Any]] = []
    for rank, events in enumerate(ranks):
        told.append(_name("process_name", f"rank {rank}", rank))
        numbers: dict[str, int] = {}
        for track, event in _untangled([Event(*event) for event in events]):
            if track not in numbers:
                numbers[track] = len(numbers)
                told.append(_name("thread_name", track, rank, numbers[track]))
            told.append(
                {
                    "ph": "X",
                    "name": event.name,
                    "cat": track.split()[0],
                    "pid": rank,
                    "tid": numbers[track],
                    "ts": 1e6 * (event.began - start),
                    "dur": 1e6 * (event.ended - event.began),
                    "args": event.about,
                }
            )
    return told


def _name(what: str, name: str, rank: int, thread: int = 0) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": thread, "args": {"name": name}}


def _untangled(events: Sequence[Event]) -> list[tuple[str, Event]]:
    """Events in order with their tracks: those on the wire that overlap get tracks beside each other."""
    rows: dict[str, list[float]] = {}  # when the last event of each row of a wire ends
    placed = []
    for event in sorted(events, key=lambda event: (_order(event.track), event.began, -event.ended)):
        if not event.track.endswith(" wire"):
            placed.append((event.track, event))
            continue
        ends = rows.setdefault(event.track, [])
        row = next((at for at, end in enumerate(ends) if end <= event.began), len(ends))
        ends[row:] = [event.ended] if row == len(ends) else [event.ended, *ends[row + 1 :]]
        placed.append((f"{event.track} {row + 1}", event))
    return sorted(placed, key=lambda item: (_order(item[0]), item[1].began, -item[1].ended))


def _order(track: str) -> tuple[bool, str]:
    return (track != MAIN, track)
