"""The time line of one step: backward, two lanes, one link and some processors, by a clock without a network.

Activities that need the processor share it, operations in flight share the link, latencies pass by themselves. Between
two events all rates are constant, so that the clock goes from event to event.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

_NOTHING = 1e-9  # seconds that are none


@dataclass
class Phase:
    """What must pass, side by side, before the next phase of a job begins."""

    work: float = 0.0  # of the processor
    wire: float = 0.0  # of the link, if no other operation uses it
    latency: float = 0.0

    @property
    def is_over(self) -> bool:
        return max(self.work, self.wire, self.latency) <= _NOTHING


@dataclass
class Job:
    """Gradients that are averaged together, once they are there."""

    ready: float  # seconds of backward after which they are
    phases: list[Phase]


@dataclass
class Elapsed:
    """Where the time of a step went.

    Args:
        step: Seconds of the whole step.
        backward: When the last gradient was there.
        exposed: Seconds from then until the last average was there.
        work: Seconds of encoding and decoding, and of the processor for communication.
        wire: Seconds that the link needs for the bytes.
        latency: Seconds of latency of all operations.
    """

    step: float = 0.0
    backward: float = 0.0
    exposed: float = 0.0
    work: float = 0.0
    wire: float = 0.0
    latency: float = 0.0


@dataclass
class _Clock:
    jobs: Sequence[Job]
    lanes: int
    parallel: float
    computing: float  # seconds of forward and backward
    now: float = 0.0
    computed: float = 0.0
    queues: list[list[list[Phase]]] = field(default_factory=list)

    def run(self) -> tuple[float, float]:
        """When backward ends, and when all jobs have ended."""
        self.queues = [[] for _ in range(self.lanes)]
        waiting = list(enumerate(self.jobs))
        backward = 0.0
        while True:
            while waiting and waiting[0][1].ready <= self.computed + _NOTHING:
                number, job = waiting.pop(0)
                self.queues[number % self.lanes].append([Phase(p.work, p.wire, p.latency) for p in job.phases])
            self._drop_what_is_over()
            active = [queue[0][0] for queue in self.queues if queue]
            computes = self.computed < self.computing - _NOTHING
            if not computes and backward == 0.0:
                backward = self.now
            if not active and not computes:
                return backward, self.now
            self._advance(active, computes, waiting[0][1].ready if waiting else self.computing)

    def _drop_what_is_over(self) -> None:
        for queue in self.queues:
            while queue and (not queue[0] or queue[0][0].is_over):
                if queue[0]:
                    queue[0].pop(0)
                if not queue[0]:
                    queue.pop(0)

    def _advance(self, active: list[Phase], computes: bool, milestone: float) -> None:
        """To the next event: a part of a phase is over, or backward has come to the next bucket or to its end."""
        busy = sum(phase.work > _NOTHING for phase in active) + computes
        sending = sum(phase.wire > _NOTHING for phase in active)
        speed, share = min(1.0, self.parallel / max(busy, 1)), 1.0 / max(sending, 1)
        left = [phase.work / speed for phase in active if phase.work > _NOTHING]
        left += [phase.wire / share for phase in active if phase.wire > _NOTHING]
        left += [phase.latency for phase in active if phase.latency > _NOTHING]
        if computes:
            left.append((min(milestone, self.computing) - self.computed) / speed)
        passed = max(min(left), _NOTHING)
        self.now += passed
        if computes:
            self.computed += passed * speed
        for phase in active:
            phase.work = max(0.0, phase.work - passed * speed)
            phase.wire = max(0.0, phase.wire - passed * share)
            phase.latency = max(0.0, phase.latency - passed)


def elapsed(jobs: Sequence[Job], step: float, backward: float, parallel: float, lanes: int = 2) -> Elapsed:
    """The time line of a step.

    Args:
        jobs: What is averaged, in the order in which lanes take turns.
        step: Seconds of a step without communication.
        backward: Seconds of it until the last gradient is there.
        parallel: Activities of a rank that run at full speed at once.
        lanes: Threads that average.
    """
    ended, over = _Clock(jobs, lanes, parallel, backward).run()
    phases = [phase for job in jobs for phase in job.phases]
    return Elapsed(
        step=over + max(step - backward, 0.0),
        backward=ended,
        exposed=over - ended,
        work=sum(phase.work for phase in phases),
        wire=sum(phase.wire for phase in phases),
        latency=sum(phase.latency for phase in phases),
    )
