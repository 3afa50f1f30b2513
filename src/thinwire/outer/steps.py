"""When an inner step ends: after the optimizer's step, or when a GradScaler skips it."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from thinwire.errors import WorldError

_ATTACHED: "weakref.WeakSet[torch.optim.Optimizer]" = weakref.WeakSet()


def check_free(optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Two handles would both exchange what the other has moved."""
    if any(optimizer in _ATTACHED for optimizer in optimizers):
        raise WorldError(
            "this optimizer has outer steps already; call handle.use(...) for another codec, or handle.close() before"
            " attach_outer."
        )


class StepHooks:
    """Calls a function once after every step of the last optimizer, skipped ones too.

    A GradScaler skips steps whose gradients overflowed, on each rank others. If skipped steps did not count, ranks
    would come to a round in different iterations of their loops, and at the end of training one of them not at all.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], scaler: Any, ended: Callable[[], None]) -> None:
        self._optimizers, self._ended = optimizers, ended
        self._fired = False
        self._last = last = optimizers[-1]
        # a compiled step cannot trace threads
        self._hook = last.register_step_post_hook(torch.compiler.disable(self._on_step))  # type: ignore[no-untyped-call]
        _ATTACHED.update(optimizers)
        self._counted = _counted_step(scaler) if scaler is not None else None
        if self._counted is not None:
            self._counted.hooks.append(self)

    def parameters(self) -> Iterator[Tensor]:
        """What the optimizers train."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                yield from group["params"]

    def remove(self) -> None:
        """Leave the optimizer and the scaler as they were; a second call does nothing."""
        self._hook.remove()
        _ATTACHED.difference_update(self._optimizers)
        if self._counted is not None:
            self._counted.leave(self)
        self._counted = None

    def begin(self) -> None:
        """A step of the scaler begins."""
        self._fired = False

    def end(self, optimizer: Any) -> None:
        """It has ended; if no step was made, it was skipped."""
        if optimizer is self._last and not self._fired:
            self._ended()

    def _on_step(self, optimizer: Any, args: Any, options: Any) -> None:
        self._fired = True
        self._ended()


class _CountedStep:
    """In place of the method `step` of a scaler, which several handles can share."""

    def __init__(self, scaler: Any) -> None:
        self.hooks: list[StepHooks] = []
        self._scaler, self._before, self._plain = scaler, vars(scaler).get("step"), scaler.step

    def __call__(self, optimizer: Any, *args: Any, **options: Any) -> Any:
        for hooks in self.hooks:
            hooks.begin()
        result = self._plain(optimizer, *args, **options)
        for hooks in list(self.hooks):
            hooks.end(optimizer)
        return result

    def leave(self, hooks: StepHooks) -> None:
        """The scaler gets its own method back behind the last one, unless something else has replaced this one."""
        self.hooks.remove(hooks)
        if self.hooks or vars(self._scaler).get("step") is not self:
            return
        if self._before is None:
            del self._scaler.step
        else:
            self._scaler.step = self._before


def _counted_step(scaler: Any) -> _CountedStep:
    """The one of this scaler."""
    found = vars(scaler).get("step")
    if not isinstance(found, _CountedStep):
        scaler.step = found = _CountedStep(scaler)
    return found
