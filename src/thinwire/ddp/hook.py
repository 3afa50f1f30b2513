"""The hook that DistributedDataParallel calls for each bucket, and the handle its user holds."""

import time
import warnings
import weakref
import zlib
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from thinwire._version import __version__
from thinwire.core.codec import Codec
from thinwire.core.plan import Decision, Plan
from thinwire.core.stage import Stage
from thinwire.ddp.engine import Engine, Piece, check_agreement
from thinwire.ddp.lane import Lane
from thinwire.ddp.saving import load_engine, save_engine
from thinwire.errors import StateError, ThinwireError, WorldError
from thinwire.worlds.distributed import Distributed

Bucket: TypeAlias = "torch.futures.Future[Tensor]"
PlanLike = Plan | Codec | Stage | str | Path | Mapping[str, Any] | Sequence[Any]


def attach(
    model: DistributedDataParallel,
    plan: PlanLike,
    *,
    seed: int = 0,
    start: int = 0,
    check: int = 0,
    scaler: Any = None,
    headroom: bool = False,
    lanes: int = 2,
    timeout: timedelta | None = None,
    measure_every: int = 10,
) -> "Handle":
    """Compress the gradients of a DistributedDataParallel model from its next backward on.

    `plan` is a preset or chain as text, a Codec, a mapping of parameter patterns to codecs, a file, or a Plan.
    `start` leaves the first steps uncompressed; `check=N` compares the results of all ranks every N steps;
    `scaler` is the GradScaler whose loss scale the residuals must follow; `headroom` sends nothing at all, to show
    the best that any codec could reach. The handle reports, swaps codecs, saves and loads.
    """
    if not isinstance(model, DistributedDataParallel):
        raise WorldError(
            f"attach needs a DistributedDataParallel model; got {type(model).__name__}. Wrap it first, or use"
            " thinwire.average_gradients(model, codec, state) in a loop of your own."
        )
    if model._comm_hooks or model.mixed_precision is not None:
        owner = "mixed_precision=" if model.mixed_precision is not None else model._comm_hooks[0][0].__qualname__
        raise WorldError(
            f"this model's hook slot is already taken by {owner}, and DDP has only one; build the DDP model without it"
            " (for mixed precision use torch.autocast, which works with thinwire)."
        )
    handle = Handle(model, Plan.parse(plan), seed, start, check, scaler, headroom, lanes, timeout, measure_every)
    model.register_comm_hook(handle, thinwire_hook)
    return handle


def thinwire_hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations it does not know
    """Queue one bucket on a lane."""
    return state._on_bucket(bucket)


class Handle:
    """What `attach` returns: the plan in force, its metrics, and the state that belongs into checkpoints."""

    def __init__(
        self,
        model: DistributedDataParallel,
        plan: Plan,
        seed: int,
        start: int,
        check: int,
        scaler: Any,
        headroom: bool,
        lanes: int,
        timeout: timedelta | None,
        measure_every: int,
    ) -> None:
        # DDP keeps the handle alive through its hook: no reference back, or neither would ever be freed
        self._model = weakref.ref(model)
        self._names = {id(p): name for name, p in model.module.named_parameters()}
        self._lanes = [Lane(model.process_group, timeout) for _ in range(lanes)]
        self.engine = Engine.of(plan, self._trained(), seed, start)
        self.engine.meter.every = measure_every
        self.headroom = headroom
        self.check = check
        self.on_step: list[Callable[[dict[str, Any]], None]] = []
        self._scaler = scaler
        self._pending: list[torch.futures.Future[Tensor]] = []
        self._fingerprint = 0
        self._agree()
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
        self.engine.use(Plan.parse(plan), self._trained())
        self._agree()
        self._say_if_idle()

    def state_dict(self) -> dict[str, Any]:
        """This rank's memory: tensors, numbers and text. Save it on every rank, or use `full_state_dict`."""
        return save_engine(self.engine, self._lanes[0].world)

    def full_state_dict(self) -> dict[str, Any]:
        """The memory of all ranks in one dictionary, the same on each; every rank must call it."""
        everyone: list[Any] = [None] * self._lanes[0].world.ranks
        dist.all_gather_object(everyone, self.state_dict(), group=self._lanes[0].world.group)
        whole = dict(everyone[0])
        for saved in everyone[1:]:
            whole |= {key: value for key, value in saved.items() if key.startswith("rank")}
        return whole

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on where a run stopped; nothing changes if the checkpoint does not fit."""
        load_engine(self.engine, self._lanes[0].world, saved)

    def close(self) -> None:
        """End the threads; the model cannot be trained with this handle afterwards."""
        for lane in self._lanes:
            lane.close()

    # What DDP asks.

    def _on_bucket(self, bucket: Any) -> "Bucket":
        buffer: Tensor = bucket.buffer()
        if self.headroom:
            done: torch.futures.Future[Tensor] = torch.futures.Future()
            done.set_result(buffer)
            return done
        if bucket.index() == 0:
            self._follow_loss_scale()
        pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
        pieces = [Piece(self._names[id(p)], gradient, p.detach()) for p, gradient in pairs]
        lane = self._lanes[int(bucket.index()) % len(self._lanes)]
        future = lane.queue(lambda world: self._average(pieces, world, buffer), buffer)
        self._pending.append(future)
        if bucket.is_last():
            return self._last(future, lane, buffer)
        return future

    def _average(self, pieces: list[Piece], world: Distributed, buffer: Tensor) -> Tensor:
        try:
            self.engine.average(pieces, world, buffer)
        except ThinwireError as reason:
            names = ", ".join(p.name for p in pieces[:4]) + (", ..." if len(pieces) > 4 else "")
            raise WorldError(f"{reason} [rank {world.rank}, step {self.engine.step}, averaging {names}]") from reason
        if self.check and self.engine.step % self.check == 0:
            data = buffer.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
            with self.engine.meter.lock:  # buckets of both lanes meet here
                self._fingerprint ^= zlib.crc32(data)
        return buffer

    def _last(self, future: "Bucket", lane: Lane, buffer: Tensor) -> "Bucket":
        """End the step behind all of its buckets; its own lane waits for the others."""
        ready, others, self._pending = time.perf_counter(), self._pending[:-1], []

        def finish(world: Distributed) -> Tensor:
            for other in others:
                other.wait()
            future.wait()
            self._end_step(world, time.perf_counter() - ready)
            return buffer

        return lane.queue(finish, buffer)

    def _end_step(self, world: Distributed, exposed: float) -> None:
        step = self.engine.step
        if self.check and step % self.check == 0:
            self._compare_results(world, step)
        self.engine.step += 1
        metrics = self.engine.meter.close(step, world.ranks, exposed)
        for callback in self.on_step:
            callback(metrics)

    def _compare_results(self, world: Distributed, step: int) -> None:
        mine, self._fingerprint = self._fingerprint, 0
        everyone: list[Any] = [None] * world.ranks
        dist.all_gather_object(everyone, mine, group=world.group)
        wrong = [rank for rank in range(world.ranks) if everyone[rank] != everyone[0]]
        if wrong:
            raise WorldError(f"at step {step} the averaged gradients of rank {wrong[0]} differ from those of rank 0.")

    def _follow_loss_scale(self) -> None:
        if self._scaler is not None:
            self.engine.rescale(float(self._scaler.get_scale()))

    def _trained(self) -> list[tuple[str, Tensor]]:
        model = self._model()
        if model is None:
            raise StateError("the DDP model of this handle is gone; attach to the new one.")
        return [(name, p) for name, p in model.module.named_parameters() if p.requires_grad]

    def _agree(self) -> None:
        layout = [(name, tuple(p.shape), str(p.dtype)) for name, p in self._trained()]
        check_agreement(
            self._lanes[0].world,
            {
                "the thinwire version": __version__,
                "the plan": str(self.engine.plan),
                "the parameters": layout,
                "seed, start and check": (self.engine.seed, self.engine.start, self.check),
            },
        )

    def _say_if_idle(self) -> None:
        wanted = any(rule.codec.working for rule in self.engine.plan.rules)
        if wanted and self.engine.compressed_share() == 0 and not self.headroom:
            reasons = sorted({d.why for d in self.plan})
            warnings.warn(
                f"thinwire will compress nothing: no parameter fits the plan {self.engine.plan}"
                f" ({'; '.join(reasons)}). handle.plan lists every parameter.",
                RuntimeWarning,
                stacklevel=3,
            )
