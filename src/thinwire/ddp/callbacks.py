"""Functions of the user that are called after every step, on the thread that trains.

A step ends on a thread of a lane. On CPUs, `backward()` itself calls the functions when it ends. With an accelerator,
autograd ends backward on a thread of its own: then the functions wait for the next call on the thread that trains.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from thinwire.ddp.metrics import StepMetrics

Callback = Callable[[StepMetrics], None]


class StepCallbacks:
    """Calls each function once with the metrics of each step."""

    def __init__(self) -> None:
        self.functions: list[Callback] = []
        self.closed = False
        self._due: deque[tuple[Callback, StepMetrics]] = deque()
        self._training_thread = threading.get_ident()
        self._forward_hook: Any = None

    def watch(self, model: nn.Module) -> None:
        """The thread that calls the model with gradients is the one that trains."""
        hook = torch.compiler.disable(self._on_forward)  # type: ignore[no-untyped-call]  # it cannot trace threads
        self._forward_hook = model.register_forward_pre_hook(hook)

    def add(self, metrics: StepMetrics) -> None:
        """A step has ended, on whatever thread."""
        self._due.extend((function, metrics) for function in self.functions)

    def run(self) -> None:
        """Call what is due, if this is the thread that trains. What one raises is raised; the others stay due."""
        while self._due and threading.get_ident() == self._training_thread:
            function, metrics = self._due.popleft()
            function(metrics)

    def close(self) -> None:
        """Call what is still due: no later call would do it."""
        self.closed = True
        if self._forward_hook is not None:
            self._forward_hook.remove()
        self._training_thread = threading.get_ident()
        self.run()

    def _on_forward(self, model: Any, given: Any) -> None:
        if torch.is_grad_enabled():
            self._training_thread = threading.get_ident()
            self.run()
