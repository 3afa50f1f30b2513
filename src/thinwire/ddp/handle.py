"""The handle that `attach` returns, as far as it does not depend on what kind of model it was attached to."""

from abc import ABC, abstractmethod
from typing import Any

from thinwire.core.plan import Decision, PlanLike
from thinwire.ddp.callbacks import Callback, StepCallbacks
from thinwire.ddp.checkpoint_api import Checkpoints
from thinwire.ddp.metrics import StepMetrics
from thinwire.ddp.unhooked import not_copied
from thinwire.errors import CodecError


class Handle(Checkpoints, ABC):
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

    _callbacks: StepCallbacks

    @property
    def headroom(self) -> bool:
        """Whether nothing is sent at all."""
        return False

    @property
    def check(self) -> int:
        """The ranks compare their results every so many steps; 0: never."""
        return 0

    @property
    def local_size(self) -> int:
        """Ranks on each host that share its link; 1: every rank exchanges with all others."""
        return 1 if self.engine.share is None else self.engine.share.local_size

    @property
    def on_step(self) -> list[Callback]:
        """Functions that are called with the metrics of every step, on the thread that trains.

        They are called when `backward()` ends; with an accelerator, at the next call of the model, of `metrics()` or of
        `close()`. What a function raises is raised there.
        """
        return self._callbacks.functions

    @on_step.setter
    def on_step(self, functions: list[Callback]) -> None:
        self._callbacks.functions = functions

    @property
    def plan(self) -> list[Decision]:
        """What was decided for every parameter, and why; with what stages have decided since from its gradients."""
        return self.engine.explained()

    @property
    def decisions(self) -> list[Any]:
        """What `auto` has decided, each with its step, its reason and its figures; empty with any other plan."""
        return [] if self.chooser is None else list(self.chooser.decisions)

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
        given: Any = value
        if not isinstance(given, (int, float)) or not 0.0 <= given <= 1.0:
            raise CodecError(f"dial must be a number from 0 to 1; got {given!r}.")
        self.engine.dial = float(value)

    def metrics(self) -> StepMetrics | None:
        """The last complete step: bytes, ratios, rounds, relative error, and where the time went; None before it."""
        self._callbacks.run()
        return self.engine.meter.last

    def report(self) -> Any:
        """The plan and the last step as a Rich table; print it with rich.print."""
        from thinwire.ddp.display import report_table

        return report_table(self)

    def log_to(self, writer: Any, prefix: str = "thinwire") -> None:
        """Write every step's numbers to `writer` as `prefix`/name.

        `writer` is a TensorBoard SummaryWriter, a Weights & Biases run, or the mlflow module.
        """
        from thinwire.ddp.display import step_logger

        self.on_step.append(step_logger(writer, prefix))

    @abstractmethod
    def use(self, plan: PlanLike) -> None:
        """Use another `plan` (all that `attach` takes) from the next step on; call it on all ranks after the same step.

        Residuals stay, and the new codec delivers them.
        """

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._callbacks.closed

    @abstractmethod
    def close(self) -> None:
        """End the threads and destroy their groups; the model cannot be trained with this handle afterwards."""

    def __reduce__(self) -> Any:
        raise not_copied()
