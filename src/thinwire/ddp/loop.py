"""Averaging gradients in a loop of one's own, without DistributedDataParallel."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from thinwire._version import __version__
from thinwire.core.buffers import Buffers
from thinwire.core.inputs import check_dense
from thinwire.core.plan import Plan, PlanLike
from thinwire.ddp.advice import check_optimizer, warn_optimizer, warn_uncompressed
from thinwire.ddp.arithmetic import warn_if_arithmetic_differs
from thinwire.ddp.checkpoint_load import load_engine
from thinwire.ddp.checkpoint_save import save_engine
from thinwire.ddp.consistency import check_agreement, new_run
from thinwire.ddp.engine import Engine, NamedGradient
from thinwire.ddp.metrics import StepMetrics
from thinwire.ddp.models import check_parameters, check_whole
from thinwire.ddp.names import parameter_names
from thinwire.ddp.reduction import check_reduction
from thinwire.errors import StateError
from thinwire.worlds.distributed import Distributed
from thinwire.worlds.group import process_group

if TYPE_CHECKING:
    from thinwire.worlds.group import GroupLike


class GradientState:
    """What `average_gradients` remembers between steps: one for each model; save it with the model.

    Args:
        seed: Seed of random rounding; equal on all ranks.
        group: The process group, or a DeviceMesh of one dimension; None takes the default group.
        optimizer: The optimizer that steps the model; a warning says where it does not go together with the plan.
    """

    def __init__(self, *, seed: int = 0, group: "GroupLike" = None, optimizer: Any = None) -> None:
        check_optimizer(optimizer)
        self.optimizer = optimizer
        self.seed = seed
        self.group = process_group(group)
        self.engine: Engine | None = None
        self.buffers = Buffers()  # memory that is new in each step costs more than the work on it
        self._waiting: Mapping[str, Any] | None = None

    def bind(
        self, trained: list[tuple[str, nn.Parameter]], plan: Plan, world: Distributed, reduction: str | None
    ) -> Engine:
        """The engine for these parameters, plan and reduction; when one of them is new, the ranks compare theirs."""
        engine = self.engine
        if (
            engine is not None
            and (str(engine.plan), engine.reduction) == (str(plan), reduction)
            and [name for name, _ in trained] == [*engine.decisions]
        ):
            return engine
        layout = [(name, tuple(p.shape), str(p.dtype)) for name, p in trained]
        facts: dict[str, Any] = {"the thinwire version": __version__, "the plan": str(plan), "the parameters": layout}
        loaded = self._waiting is not None
        facts |= {"the seed": self.seed, "having a checkpoint to load": loaded, "the reduction": reduction}
        check_agreement(world, facts, "average_gradients")
        decisions = plan.decisions(trained)
        first = next((p.device for _, p in trained), torch.device("cpu"))
        warn_if_arithmetic_differs(world, {decision.codec for decision in decisions}, first)
        warn_uncompressed(plan, decisions, stacklevel=3)
        warn_optimizer(self.optimizer, {id(p): n for n, p in trained}, {d.name: d for d in decisions}, stacklevel=3)
        if engine is not None:
            engine.use(plan, trained)
            engine.reduction = reduction
            return engine
        engine = Engine.of(plan, trained, self.seed)
        engine.run, engine.reduction = new_run(world), reduction
        if loaded:
            load_engine(engine, world, lambda: self._waiting)
        self.engine, self._waiting = engine, None
        return engine

    def metrics(self) -> StepMetrics | None:
        """The last step: bytes, ratios, rounds, relative error, and where the time went; None before the first one."""
        return self.engine.meter.last if self.engine is not None else None

    def state_dict(self) -> dict[str, Any]:
        """This rank's memory; save it on every rank."""
        if self.engine is None:
            raise StateError("there is nothing to save yet: average_gradients has not been called with this state.")
        return save_engine(self.engine, Distributed(self.group))

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on where a run stopped, on all ranks; it is checked against the model and the other ranks at the next
        average_gradients, or at once if there was one before."""
        if self.engine is None:
            self._waiting = saved
        else:
            load_engine(self.engine, Distributed(self.group), lambda: saved)


def average_gradients(model: nn.Module, plan: PlanLike, state: GradientState, *, reduction: str | None = None) -> None:
    """Replace every parameter's gradient by its mean over the ranks, compressed as the plan says.

    Call it between backward() and optimizer.step(), on all ranks. A parameter without a gradient on this rank counts
    as zero.

    Args:
        model: The model; not wrapped in DDP.
        plan: What `attach` takes: a codec, a mapping of parameter patterns to codecs, a file or a `Plan`.
        state: What is remembered between steps. Keep it as long as the model.
        reduction: `"ring"` sums what chains of transforms send, such as `gradiveq`, in a pipelined ring. None takes the
            cheapest way for each tensor.

    Examples:
        >>> state = thinwire.GradientState()
        >>> net(inputs).sum().backward()
        >>> thinwire.average_gradients(net, "qsgd", state)
    """
    world = Distributed(state.group, state.buffers)
    trained = [(name, p) for name, p in parameter_names(model) if p.requires_grad]
    if state.engine is None:
        check_whole(model)
        check_parameters(trained)
    for name, parameter in trained:
        if parameter.grad is not None:
            check_dense(f"the gradient of {name}", parameter.grad)
    engine = state.bind(trained, check_reduction(reduction, Plan.parse(plan)), world, reduction)
    pieces = []
    for name, parameter in trained:
        if parameter.grad is None:
            parameter.grad = parameter.detach().new_zeros(parameter.shape)
        pieces.append(NamedGradient(name, parameter.grad, parameter.detach()))
    engine.average(pieces, world)
    engine.end_step(world.ranks, 0.0)
