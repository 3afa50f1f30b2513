"""When an inner step ends: after the optimizer's step, or when a GradScaler skips it."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from thinwire.errors import WorldError

_ATTACHED: "weakref.WeakSet[torch.optim.Optimizer]" = weakref.WeakSet()


def check_free(optimizer: torch.optim.Optimizer) -> None:
    """Two handles would both exchange what the other has moved."""
    if optimizer in _ATTACHED:
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
        self._optimizers, self._scaler, self._ended = optimizers, scaler, ended
        self._fired = False
        self._last = last = optimizers[-1]
        # a compiled step cannot trace threads
        self._hook = last.register_step_post_hook(torch.compiler.disable(self._on_step))  # type: ignore[no-untyped-call]
        _ATTACHED.add(last)
        if scaler is not None:
            plain_step = scaler.step

            def step(optimizer: Any, *args: Any, **options: Any) -> Any:
                self._fired = False
                result = plain_step(optimizer, *args, **options)
                if optimizer is last and not self._fired:
                    self._ended()
                return result

            scaler.step = step

    def parameters(self) -> Iterator[Tensor]:
        """What the optimizers train."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                yield from group["params"]

    def remove(self) -> None:
        """Leave the optimizer and the scaler as they were; a second call does nothing."""
        self._hook.remove()
        _ATTACHED.discard(self._last)
        if self._scaler is not None and "step" in vars(self._scaler):
            del self._scaler.step
        self._scaler = None

    def _on_step(self, optimizer: Any, args: Any, options: Any) -> None:
        self._fired = True
        self._ended()
