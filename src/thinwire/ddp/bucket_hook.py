"""The state of DDP's communication hook: DDP calls it for each bucket, and the last bucket ends the step."""

import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from thinwire.core.profiling import span
from thinwire.ddp.callbacks import StepCallbacks
from thinwire.ddp.consistency import Fingerprint
from thinwire.ddp.engine import Engine, NamedGradient, names_of
from thinwire.ddp.host_exchange import HostExchange
from thinwire.ddp.lane import Lane, Promise
from thinwire.ddp.unhooked import Watch, not_copied, release_slot
from thinwire.errors import ThinwireError, WorldError
from thinwire.worlds.distributed import Distributed

Bucket: TypeAlias = "torch.futures.Future[Tensor]"

# Bytes of gradients. DDP makes its first bucket short, to send it early. But each round has a fixed cost, and few bytes
# are sent for compressed gradients: short buckets wait and share their rounds.
WORTH_ROUNDS = 8 << 20


@dataclass
class PendingBucket:
    """A bucket that is queued or being averaged."""

    pieces: list[NamedGradient]
    promise: Promise


class BucketHook:
    """The state of DDP's hook: averages buckets on lanes, and counts steps.

    DDP refers to it. It must not refer to the model, or neither would ever be freed.
    """

    def __init__(
        self,
        engine: Engine,
        world: Distributed,
        lanes: Sequence[Lane],
        *,
        names: dict[int, str],
        layout: Sequence[tuple[str, Tensor]],
        check: int,
        scaler: Any,
        headroom: bool,
        exchanges: Sequence[HostExchange] = (),
    ) -> None:
        """`names` are those of the parameters, by id; `layout` has the shapes of those that are trained.

        `exchanges`: those of each lane, if the ranks of a host share its link.
        """
        self.engine = engine
        self.headroom = headroom
        self.check = check
        self.callbacks = StepCallbacks()
        self.lanes, self._exchanges = lanes, exchanges
        self._world = world
        self._names, self._layout = names, layout
        self._scaler = scaler
        self._waiting: list[PendingBucket] = []
        self._sent: list[list[PendingBucket]] = []  # in this step
        self._fingerprint = Fingerprint()
        self._watch: Callable[[], Watch | None] = lambda: None
        self._held: Callable[[], DistributedDataParallel | None] = lambda: None
        self._hook: Callable[..., Any]  # no method of this object: it could not be freed at once

    def enter(self, model: DistributedDataParallel, hook: Callable[..., Any]) -> None:
        """Register the hook, now or as soon as it has something to do."""

        self._held, self._hook = weakref.ref(model), hook
        self.callbacks.watch(model)
        (self._take if self.works() else self._wait)(model)

    def _take(self, model: DistributedDataParallel) -> None:
        model.register_comm_hook(self, self._hook)
        self._watch = lambda: None

    def _wait(self, model: DistributedDataParallel) -> None:
        trained = [p for p in model.module.parameters() if p.requires_grad and id(p) in self._names]
        self._watch = weakref.ref(Watch(model, trained, self._take, self._on_plain_step))

    def works(self) -> bool:
        """Whether the hook has something to do: compress, deliver residuals, compare results, send nothing, or
        sum inside hosts first."""
        working = self.engine.has_codecs() or self.engine.slots or self.check or self.headroom
        return bool(working or self._exchanges)

    def take_slot(self) -> None:
        """Register the hook if it has something to do by now."""
        if (watch := self._watch()) is not None and self.works():
            watch.take_slot()

    def leave_slot(self) -> None:
        """Give DDP its slot back; all ranks call it after the same step, when none of them has anything to do."""
        model = self._held()
        if self._watch() is None and model is not None and release_slot(model):
            self._wait(model)

    def close(self) -> None:
        """End the threads, destroy their process groups, and call the callbacks that are still due."""
        if (watch := self._watch()) is not None:
            watch.end()
        for lane in self.lanes:
            lane.leave()
        self.callbacks.close()

    def __reduce__(self) -> Any:
        raise not_copied()

    def _on_plain_step(self, exposed: float) -> None:
        """DDP has averaged all gradients without the hook."""
        self.engine.note_plain(self._layout, self._world.ranks, exposed)
        self._end_step(exposed)
        self.callbacks.run()

    def on_bucket(self, bucket: Any) -> Bucket:
        """A future of the averaged bucket."""
        if isinstance(bucket, tuple):
            raise compiled_reducer()
        refuse_capture(bucket.buffer())
        in_backward = torch._C._current_graph_task_id() != -1  # -1: this rank has joined
        future = self._send_nothing(bucket) if self.headroom else self._send_bucket(bucket, in_backward)
        if bucket.is_last():
            self._call_behind(future, in_backward)
        return future

    def _send_bucket(self, bucket: Any, in_backward: bool) -> Bucket:
        if bucket.index() == 0:
            self._begin_step()
        buffer: Tensor = bucket.buffer()
        pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
        pieces = [NamedGradient(self._names[id(p)], gradient, p.detach()) for p, gradient in pairs]
        load = PendingBucket(pieces, Promise(buffer, in_backward))
        if any(self.engine.codec(piece.name).stages for piece in pieces):
            self._waiting.append(load)
        else:
            self._send([load])
        if bucket.is_last() or sum(each.promise.buffer.nbytes for each in self._waiting) >= WORTH_ROUNDS:
            self._send(self._waiting)
            self._waiting = []
        return self._last(Promise(buffer, in_backward)) if bucket.is_last() else load.promise.future

    def _send(self, loads: list[PendingBucket]) -> None:
        """Average these buckets in the same rounds. Lanes take turns."""
        if loads:
            number = len(self._sent) % len(self.lanes)
            self._sent.append(loads)
            self.lanes[number].queue(
                lambda world: self._average(loads, world, number), [load.promise for load in loads]
            )

    def _begin_step(self) -> None:
        self._sent, self._waiting = [], []
        if self._scaler is not None:
            self.engine.rescale(float(self._scaler.get_scale()))

    def _call_behind(self, last: Bucket, in_backward: bool) -> None:
        """When the step has ended, raise its error or call the callbacks."""
        if in_backward:
            # A future that fails crosses C++ as "Unable to cast ... to Tensor". A callback at the end of backward
            # raises the error itself.
            torch.autograd.Variable._execution_engine.queue_callback(self._on_wait)
        else:
            with span("wait"):
                last.wait()  # as DDP would do next
            self._on_backward_end()

    def _on_wait(self) -> None:
        """DDP's callback is next, which waits for the buckets; what is queued now runs after it."""
        waiting = ExitStack()
        waiting.enter_context(span("wait"))

        def end() -> None:
            waiting.close()
            self._on_backward_end()

        torch.autograd.Variable._execution_engine.queue_callback(end)

    def _on_backward_end(self) -> None:
        self._raise_failure()
        self.callbacks.run()

    def _raise_failure(self) -> None:
        reason = next((lane.broken for lane in self.lanes if lane.broken is not None), None)
        if reason is not None:
            raise WorldError(str(reason)) from reason

    def _average(self, loads: list[PendingBucket], world: Distributed, lane: int) -> None:
        pieces = [piece for load in loads for piece in load.pieces]
        buffers = [load.promise.buffer for load in loads]
        try:
            if self._exchanges:
                self._exchanges[lane].average(self.engine, pieces)
            else:
                self.engine.average(pieces, world, buffers[0] if len(buffers) == 1 else None)
        except Exception as reason:
            where = f"[rank {world.rank}, step {self.engine.step}, averaging {names_of(pieces)}]"
            raise WorldError(f"{_sentence(reason)} {where}") from reason
        for buffer in buffers if self._checks() else ():
            self._fingerprint.add(buffer)

    def _last(self, promise: Promise) -> Bucket:
        """End the step after all of its buckets: the lane of the last bucket waits for the other lanes."""
        ready, sent, self._sent = time.perf_counter(), self._sent, []

        def finish(world: Distributed) -> None:
            for load in (load for loads in sent for load in loads):
                load.promise.future.wait()
            self._raise_failure()
            if self._checks():
                self._fingerprint.compare(world, self.engine.step)
            self._end_step(time.perf_counter() - ready)

        self.lanes[(len(sent) - 1) % len(self.lanes)].queue(finish, [promise])
        return promise.future

    def _send_nothing(self, bucket: Any) -> Bucket:
        done: Bucket = torch.futures.Future()
        done.set_result(bucket.buffer())
        if bucket.is_last():
            self._end_step(0.0)
        return done

    def _end_step(self, exposed: float) -> None:
        share = self.engine.share
        self.callbacks.add(self.engine.end_step(self._world.ranks if share is None else len(share.fellows), exposed))

    def _checks(self) -> bool:
        return self.check > 0 and self.engine.step % self.check == 0


def refuse_capture(buffer: Tensor) -> None:
    """A CUDA graph repeats what was launched, and not what a lane does on the host."""
    if buffer.is_cuda and torch.cuda.is_current_stream_capturing():
        raise WorldError(
            "thinwire cannot be captured in a CUDA graph, because it works on the host in each step; capture without"
            " the backward pass, or train without graphs."
        )


def compiled_reducer() -> WorldError:
    """The error for a DDP reducer inside a compiled graph."""
    return WorldError(
        "thinwire does not work inside a graph of torch.compile with optimize_ddp='python_reducer';"
        " leave torch._dynamo.config.optimize_ddp at its default."
    )


def _sentence(reason: Exception) -> str:
    return str(reason) if isinstance(reason, ThinwireError) else f"{type(reason).__name__}: {reason}"
