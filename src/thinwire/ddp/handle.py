"""The handle that `attach` returns."""

from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from thinwire._version import __version__
from thinwire.core.plan import Decision, Plan, PlanLike
from thinwire.ddp.advice import warn_optimizer, warn_uncompressed
from thinwire.ddp.arithmetic import warn_if_arithmetic_differs
from thinwire.ddp.bucket_hook import BucketHook
from thinwire.ddp.callbacks import Callback
from thinwire.ddp.checkpoint_api import Checkpoints
from thinwire.ddp.consistency import check_agreement, new_run
from thinwire.ddp.engine import Engine
from thinwire.ddp.lane import Lane, end_forgotten, group_count
from thinwire.ddp.metrics import StepMetrics
from thinwire.ddp.names import parameter_names
from thinwire.ddp.unhooked import not_copied
from thinwire.errors import CodecError
from thinwire.worlds.distributed import Distributed


class Handle(Checkpoints):
    """What `attach` returns: the plan in force, its metrics, and the state that belongs into checkpoints.

    `attach` makes it; its arguments are explained there. `on_step` is a list of functions that are called with the
    metrics after each step.

    Examples:
        >>> handle = thinwire.attach(ddp_model, "qsgd")
        >>> handle.on_step.append(lambda metrics: print(metrics.bytes_sent))
        >>> handle.use("powersgd(rank=4)")  # from the next step on
        >>> saved = handle.state_dict()
        >>> handle.load_state_dict(saved)
        >>> handle.close()
    """

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
        optimizer: Any,
    ) -> None:
        names = parameter_names(model.module, model.parameters_to_ignore)
        self._layout = [(name, p.detach().to("meta")) for name, p in names if p.requires_grad]
        self._world = Distributed(model.process_group)
        self.engine = Engine.of(plan, self._layout, seed, start)
        self.engine.meter.every = measure_every
        self.engine.skips = scaler is not None
        self.engine.drops_idle = bool(model.find_unused_parameters) and not model.static_graph
        self._names = {id(p): name for name, p in names}
        self._optimizer, self._timeout = optimizer, timeout
        self._agree(lanes, check, headroom)
        self.engine.run = new_run(self._world)
        end_forgotten(self._world)
        device = next((p.device for _, p in names), torch.device("cpu"))
        own = [Lane(model.process_group, device, timeout) for _ in range(0 if headroom else lanes)]
        self._compare_arithmetic = partial(warn_if_arithmetic_differs, self._world, device=device)
        self._compare_arithmetic(self.engine.codecs())
        # torch makes groups without waiting for all ranks: one that closed at once would break the others' connections
        check_agreement(self._world, {"lanes": len(own)}, "attach", timeout)
        self.hook = BucketHook(
            self.engine,
            self._world,
            own,
            names=self._names,
            layout=self._layout,
            check=check,
            scaler=scaler,
            headroom=headroom,
        )
        self._warn(stacklevel=4)

    @property
    def headroom(self) -> bool:
        """Whether nothing is sent at all."""
        return self.hook.headroom

    @property
    def check(self) -> int:
        """The ranks compare their results every so many steps; 0: never."""
        return self.hook.check

    @property
    def on_step(self) -> list[Callback]:
        """Functions that are called with the metrics of every step, on the thread that trains.

        They are called when `backward()` ends; with an accelerator, at the next call of the model, of `metrics()` or of
        `close()`. What a function raises is raised there.
        """
        return self.hook.callbacks.functions

    @on_step.setter
    def on_step(self, functions: list[Callback]) -> None:
        self.hook.callbacks.functions = functions

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

    def metrics(self) -> StepMetrics | None:
        """The last complete step: bytes, ratios, rounds, relative error, and where the time went; None before it."""
        self.hook.callbacks.run()
        return self.engine.meter.last

    def report(self) -> Any:
        """The plan and the last step as a Rich table; print it with rich.print."""
        from thinwire.ddp.display import report_table

        return report_table(self)

    def log_to(self, writer: Any, prefix: str = "thinwire") -> None:
        """Write every step's numbers to `writer` as `prefix`/name.

        `writer` is a TensorBoard SummaryWriter, a Weights & Biases run, or the mlflow module.
        """
        from thinwire.ddp.display import log_function

        log = log_function(writer)

        def write(metrics: StepMetrics) -> None:
            log({f"{prefix}/{name}": value for name, value in metrics.scalars().items()}, metrics.step)

        self.on_step.append(write)

    def use(self, plan: PlanLike) -> None:
        """Use another `plan` (all that `attach` takes) from the next step on; call it on all ranks after the same step.

        Residuals stay, and the new codec delivers them.
        """
        new = Plan.parse(plan)
        check_agreement(self._world, {"the new plan": str(new), "the step": self.engine.step}, "use", self._timeout)
        before = self.engine.plan
        self.engine.use(new, self._layout)
        try:
            self.hook.take_slot()
        except Exception:
            self.engine.use(before, self._layout)  # there are no residuals yet
            raise
        self._compare_arithmetic(self.engine.codecs())
        self._warn(stacklevel=3)

    def _take_slot(self) -> None:
        self.hook.take_slot()

    def close(self) -> None:
        """End the threads and destroy their groups; the model cannot be trained with this handle afterwards."""
        self.hook.close()

    def __reduce__(self) -> Any:
        raise not_copied()

    def _warn(self, stacklevel: int) -> None:
        if not self.headroom:
            warn_uncompressed(self.engine.plan, self.plan, stacklevel)
            warn_optimizer(self._optimizer, self._names, self.engine.decisions, stacklevel)

    def _agree(self, lanes: int, check: int, headroom: bool) -> None:
        engine = self.engine
        check_agreement(
            self._world,
            {
                "the thinwire version": __version__,
                "the plan": str(engine.plan),
                "the parameters": [(name, tuple(p.shape), str(p.dtype)) for name, p in self._layout],
                "the seed": engine.seed,
                "start": engine.start,
                "check": check,
                "headroom": headroom,
                "the number of lanes": lanes,
                "having a scaler": engine.skips,
                "the number of process groups": group_count(self._world.group),
            },
            "attach",
            self._timeout,
        )
