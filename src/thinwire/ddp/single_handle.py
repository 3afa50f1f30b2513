"""The handle of a model that one process trains alone: nothing is sent, so nothing is compressed."""

import weakref
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from thinwire.core.plan import Plan, PlanLike
from thinwire.ddp.callbacks import StepCallbacks
from thinwire.ddp.engine import Engine
from thinwire.ddp.handle import Handle
from thinwire.ddp.names import parameter_names
from thinwire.ddp.reduction import check_reduction
from thinwire.ddp.unhooked import PassWatch
from thinwire.worlds.peers import Solo


class SingleHandle(Handle):
    """The handle of a model that one process trains alone, so that a script for many ranks runs there too.

    Gradients stay as they are. A backward pass after a forward pass is a step, whose metrics have 0 bytes; front ends
    that accumulate gradients say which pass is one (`count_when`). What a checkpoint of several ranks brings is kept
    and saved again: residuals are the sum of those of all ranks.
    """

    def __init__(self, model: nn.Module, plan: Plan, *, seed: int, start: int, reduction: str | None) -> None:
        trained = [(name, p) for name, p in parameter_names(model) if p.requires_grad]
        self._layout = [(name, torch.empty(p.shape, dtype=p.dtype, device="meta")) for name, p in trained]
        self._world, self._timeout = Solo(), None
        self.engine = Engine.of(plan, self._layout, seed, start)
        self.engine.reduction = reduction
        self._callbacks = StepCallbacks()
        self._callbacks.watch(model)
        # those that hold parameters, too: Lightning calls `training_step` and not the model itself
        owners = [module for module in model.modules() if module is model or module._parameters]
        self._watch = weakref.ref(self._watched(owners, [p for _, p in trained]))

    def _watched(self, modules: Iterable[nn.Module], parameters: Iterable[Tensor]) -> PassWatch:
        """What notices when backward passes end."""
        return PassWatch(modules, parameters, self._on_pass)

    def count_when(self, syncs: Callable[[], bool]) -> None:
        """Count the backward pass of a forward pass only if `syncs()` is true in it: the last micro-batch of a step."""
        if (watch := self._watch()) is not None:
            watch.syncs = syncs

    def use(self, plan: PlanLike) -> None:
        self.engine.use(check_reduction(self.engine.reduction, Plan.parse(plan)), self._layout)

    def close(self) -> None:
        if (watch := self._watch()) is not None:
            watch.end()
        self._callbacks.close()

    def _on_pass(self, seconds: float) -> None:
        self.engine.note_plain(self._layout, 1, 0.0)
        self._callbacks.add(self.engine.end_step(1, 0.0))
        self._callbacks.run()
