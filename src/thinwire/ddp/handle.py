"""The handle that `attach` returns: what its user asks, and what DistributedDataParallel asks."""

import time
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from thinwire._version import __version__
from thinwire.core.plan import Decision, Plan, PlanLike
from thinwire.ddp.agreement import Fingerprint, check_agreement, new_run
from thinwire.ddp.arithmetic import warn_if_arithmetic_differs
from thinwire.ddp.checkpoints import Checkpoints
from thinwire.ddp.engine import Engine, Piece
from thinwire.ddp.lane import Lane, Promise, group_count
from thinwire.ddp.names import parameter_names
from thinwire.ddp.watching import Watch, not_copied
from thinwire.errors import CodecError, ThinwireError, WorldError
from thinwire.worlds.distributed import Distributed
from thinwire.worlds.exchanges import timeout_of

Bucket: TypeAlias = "torch.futures.Future[Tensor]"

# Bytes of gradients. DDP's first bucket is a short one, so that something travels early; but a round costs what it
# costs, and of compressed gradients there is little to send.
WORTH_ROUNDS = 8 << 20


@dataclass
class Load:
    """A bucket on its way."""

    pieces: list[Piece]
    promise: Promise


class Handle(Checkpoints):
    """The plan in force, its metrics, and the state that belongs into checkpoints."""

    def __init__(
        self,
        model: DistributedDataParallel,
        plan: Plan,
        *,
        seed: int,
        start: int,
        check: int,
        scaler: Any,
        headroom: bool,
        lanes: int,
        timeout: timedelta | None,
        measure_every: int,
    ) -> None:
        # DDP keeps the handle alive through its hook: no reference back to it, or neither would ever be freed
        names = parameter_names(model.module, model.parameters_to_ignore)
        self._names = {id(p): name for name, p in names}
        self._layout = [(name, p.detach().to("meta")) for name, p in names if p.requires_grad]
        self._world = Distributed(model.process_group)
        self.engine = Engine.of(plan, self._layout, seed, start)
        self.engine.meter.every = measure_every
        self.engine.skips = scaler is not None
        self.engine.drops_idle = bool(model.find_unused_parameters) and not model.static_graph
        self.headroom = headroom
        self.check = check
        self.on_step: list[Callable[[dict[str, Any]], None]] = []
        self._scaler = scaler
        self._waiting: list[Load] = []
        self._sent: list[list[Load]] = []  # in this step
        self._fingerprint = Fingerprint()
        self._watch: Callable[[], Watch | None] = lambda: None
        self._agree(lanes)
        self.engine.run = new_run(self._world)
        device = next((p.device for _, p in names), torch.device("cpu"))
        self._lanes = [Lane(model.process_group, device, timeout) for _ in range(0 if headroom else lanes)]
        self._compare_arithmetic = partial(warn_if_arithmetic_differs, self._world, device=device)
        self._compare_arithmetic(self.engine.codecs())
        self._timeout = timeout or timeout_of(model.process_group, device) or dist.default_pg_timeout
        # torch makes groups without waiting for all ranks: one that closed at once would break the others' connections
        check_agreement(self._world, {"lanes": len(self._lanes)})
        self._say_if_idle()

    # What the user asks.

    @property
    def plan(self) -> list[Decision]:
        """What was decided for every parameter, and why."""
        return list(self.engine.decisions.values())

    @property
    def step(self) -> int:
        """Steps averaged so far."""
        return self.engine.step

    @property
    def dial(self) -> float:
        """The share of their usual loss that stages with a dial may cause, from 0 to 1; set it alike on all ranks.

        `handle.dial = guard.feed(mean_loss)` lets a LossGuard turn it.
        """
        return self.engine.dial

    @dial.setter
    def dial(self, value: float) -> None:
        if not 0.0 <= value <= 1.0:
            raise CodecError(f"dial must be from 0 to 1; got {value}.")
        self.engine.dial = float(value)

    def metrics(self) -> dict[str, Any]:
        """The last complete step: bytes, ratios, rounds, relative error, and where the time went."""
        return self.engine.meter.last

    def report(self) -> Any:
        """The plan and the last step as a Rich table; print it with rich.print."""
        from thinwire.ddp.showing import report_table

        return report_table(self)

    def log_to(self, writer: Any, prefix: str = "thinwire") -> None:
        """Write every step's numbers to a TensorBoard SummaryWriter (or anything with add_scalar)."""
        from thinwire.ddp.showing import scalars

        def write(metrics: dict[str, Any]) -> None:
            for name, value in scalars(metrics):
                writer.add_scalar(f"{prefix}/{name}", value, metrics["step"])

        self.on_step.append(write)

    def use(self, plan: PlanLike) -> None:
        """Another codec or plan from the next step on; call it on all ranks after the same step."""
        new = Plan.parse(plan)
        check_agreement(self._world, {"the new plan": str(new), "the step": self.engine.step})
        before = self.engine.plan
        self.engine.use(new, self._layout)
        try:
            self._take_slot()
        except Exception:
            self.engine.use(before, self._layout)  # nothing is held yet
            raise
        self._compare_arithmetic(self.engine.codecs())
        self._say_if_idle()

    def close(self) -> None:
        """End the threads and give up their groups; the model cannot be trained with this handle afterwards."""
        if (watch := self._watch()) is not None:
            watch.end()
        for lane in self._lanes:
            lane.leave()

    def __reduce__(self) -> Any:
        raise not_copied()

    # What DDP asks.

    def enter(self, model: DistributedDataParallel, hook: Callable[..., Any]) -> None:
        """Take the model's hook slot, now or once there is something to do in it."""

        def take(model: DistributedDataParallel) -> None:
            model.register_comm_hook(self, hook)
            self._watch = lambda: None

        if self._works():
            take(model)
        else:
            trained = [p for p in model.module.parameters() if p.requires_grad and id(p) in self._names]
            self._watch = weakref.ref(Watch(model, trained, take, self._on_plain_step))

    def _works(self) -> bool:
        """Whether anything is compressed, or owed from when it was, or compared, or left out."""
        return bool(self.engine.compressed_share() or self.engine.slots or self.check or self.headroom)

    def _take_slot(self) -> None:
        if (watch := self._watch()) is not None and self._works():
            watch.take_slot()

    def _on_plain_step(self, exposed: float) -> None:
        """DDP has averaged all gradients by itself."""
        self.engine.note_plain(self._layout, self._world.ranks, exposed)
        self._end_step(exposed)

    def on_bucket(self, bucket: Any) -> Bucket:
        """A future of the averaged bucket."""
        if isinstance(bucket, tuple):
            raise compiled_reducer()
        buffer: Tensor = bucket.buffer()
        if self.headroom:
            return self._send_nothing(buffer, bucket.is_last())
        in_backward = torch._C._current_graph_task_id() != -1  # not so for a rank that has joined
        if bucket.index() == 0:
            self._begin_step(in_backward)
        pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
        pieces = [Piece(self._names[id(p)], gradient, p.detach()) for p, gradient in pairs]
        load = Load(pieces, Promise(buffer, in_backward))
        if any(self.engine.codec(piece.name).working for piece in pieces):
            self._waiting.append(load)
        else:
            self._send([load])
        if bucket.is_last() or sum(each.promise.buffer.nbytes for each in self._waiting) >= WORTH_ROUNDS:
            self._send(self._waiting)
            self._waiting = []
        return self._last(Promise(buffer, in_backward)) if bucket.is_last() else load.promise.future

    def _send(self, loads: list[Load]) -> None:
        """Average these buckets in the same rounds, on the lane whose turn it is."""
        if loads:
            lane = self._lanes[len(self._sent) % len(self._lanes)]
            self._sent.append(loads)
            lane.queue(lambda world: self._average(loads, world), [load.promise for load in loads])

    def _begin_step(self, in_backward: bool) -> None:
        self._sent, self._waiting = [], []
        if self._scaler is not None:
            self.engine.rescale(float(self._scaler.get_scale()))
        if in_backward:
            # A future that fails crosses C++ as "Unable to cast ... to Tensor". A callback at the end of backward
            # raises the error itself; it queues another one, which runs behind DDP's own.
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: engine.queue_callback(self._raise_failure))

    def _raise_failure(self) -> None:
        reason = next((lane.broken for lane in self._lanes if lane.broken is not None), None)
        if reason is not None:
            raise WorldError(str(reason)) from reason

    def _average(self, loads: list[Load], world: Distributed) -> None:
        pieces = [piece for load in loads for piece in load.pieces]
        buffers = [load.promise.buffer for load in loads]
        try:
            self.engine.average(pieces, world, buffers[0] if len(buffers) == 1 else None)
        except Exception as reason:
            names = ", ".join(p.name for p in pieces[:4]) + (", ..." if len(pieces) > 4 else "")
            where = f"[rank {world.rank}, step {self.engine.step}, averaging {names}]"
            raise WorldError(f"{_sentence(reason)} {where}") from reason
        for buffer in buffers if self._checks() else ():
            self._fingerprint.add(buffer)

    def _last(self, promise: Promise) -> Bucket:
        """End the step behind all of its buckets; the last one's lane waits for the others."""
        ready, sent, self._sent = time.perf_counter(), self._sent, []

        def finish(world: Distributed) -> None:
            for load in (load for loads in sent for load in loads):
                load.promise.future.wait()
            self._raise_failure()
            if self._checks():
                self._fingerprint.compare(world, self.engine.step)
            self._end_step(time.perf_counter() - ready)

        self._lanes[(len(sent) - 1) % len(self._lanes)].queue(finish, [promise])
        return promise.future

    def _send_nothing(self, buffer: Tensor, last: bool) -> Bucket:
        done: Bucket = torch.futures.Future()
        done.set_result(buffer)
        if last:
            self._end_step(0.0)
        return done

    def _end_step(self, exposed: float) -> None:
        metrics = self.engine.end_step(self._world.ranks, exposed)
        for callback in self.on_step:
            callback(metrics)

    def _checks(self) -> bool:
        return self.check > 0 and self.engine.step % self.check == 0

    def _agree(self, lanes: int) -> None:
        engine = self.engine
        check_agreement(
            self._world,
            {
                "the thinwire version": __version__,
                "the plan": str(engine.plan),
                "the parameters": [(name, tuple(p.shape), str(p.dtype)) for name, p in self._layout],
                "the seed": engine.seed,
                "start": engine.start,
                "check": self.check,
                "headroom": self.headroom,
                "the number of lanes": lanes,
                "having a scaler": engine.skips,
                "the number of process groups": group_count(self._world.group),
            },
        )

    def _say_if_idle(self) -> None:
        rules = self.engine.plan.rules
        asked_for_none = bool(rules) and not any(rule.codec.working for rule in rules)
        if self.engine.compressed_share() == 0 and not asked_for_none and not self.headroom:
            reasons = sorted({d.why for d in self.plan}) or ["the model has no parameter to train"]
            warnings.warn(
                f"thinwire will compress nothing: no parameter fits the plan {self.engine.plan}"
                f" ({'; '.join(reasons)}). handle.plan lists every parameter.",
                RuntimeWarning,
                stacklevel=4,
            )


def compiled_reducer() -> WorldError:
    """What is to be raised if DDP's reducer is a part of a compiled graph."""
    return WorldError(
        "thinwire does not work inside a graph of torch.compile with optimize_ddp='python_reducer';"
        " leave torch._dynamo.config.optimize_ddp at its default."
    )


def _sentence(reason: Exception) -> str:
    return str(reason) if isinstance(reason, ThinwireError) else f"{type(reason).__name__}: {reason}"
