"""Steps of a model whose gradients DDP averages by itself, because nothing of them is compressed.

Without a hook DDP divides gradients by the number of ranks while it copies them into its buckets; a hook needs another
pass over them. So no hook is registered until it has something to do.
"""

import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from thinwire.errors import StateError, WorldError

_WATCHED: "weakref.WeakSet[DistributedDataParallel]" = weakref.WeakSet()


class PassWatch:
    """Notices when backward passes end that come after a forward pass. Only the modules refer to it."""

    def __init__(
        self, modules: Iterable[nn.Module], parameters: Iterable[Tensor], ended: Callable[[float], None]
    ) -> None:
        """`modules`: their forward passes count. `ended` is called with the seconds since the last gradient."""
        self._ended = ended
        self.syncs: Callable[[], bool] | None = None  # whether a micro-batch is the last of its step; None: each one is
        self._awaited = False  # there was a forward pass that counts
        self._begun = False  # and its gradients are coming
        self._ready = 0.0
        self._hooks: list[Any] = [module.register_forward_hook(self._on_forward) for module in modules]
        heard = weakref.WeakMethod(self._on_gradient)  # parameters may outlive the model

        def on_gradient(parameter: Tensor) -> None:
            if (hear := heard()) is not None:
                hear()

        for p in parameters:
            self._hooks.append(p.register_post_accumulate_grad_hook(on_gradient))  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Remove all hooks of this object; a second call does nothing."""
        _remove(self._hooks)

    def _counts(self, module: Any) -> bool:
        """Whether a forward pass of this module counts; not if activation checkpointing repeats it in backward."""
        if not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1:
            return False
        return self.syncs is None or self.syncs()

    def _on_forward(self, module: Any, given: Any, output: Any) -> None:
        if self._counts(module):
            self._awaited, self._begun = True, False  # a backward pass that failed has never ended

    def _on_gradient(self) -> None:
        self._ready = time.perf_counter()
        if self._awaited and not self._begun:
            self._begun = True
            # queued from the first callback, the second one runs after DDP's own
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: engine.queue_callback(self._on_end))

    def _on_end(self) -> None:
        if self._begun:
            self._awaited = self._begun = False  # further passes over the same graph do not count
            self._ended(time.perf_counter() - self._ready)

    def __reduce__(self) -> Any:
        raise not_copied()


class Watch(PassWatch):
    """Notices when steps end whose gradients DDP averages, until the hook is registered."""

    def __init__(
        self,
        model: DistributedDataParallel,
        parameters: Iterable[Tensor],
        take: Callable[[DistributedDataParallel], None],
        ended: Callable[[float], None],
    ) -> None:
        """`take` registers the hook; `ended` is called with the seconds that backward waited for averages."""
        super().__init__([model], parameters, ended)
        self._model, self._take = weakref.ref(model), take
        weakref.finalize(model, _remove, self._hooks)
        # a rank that has joined makes no gradients, and only a hook counts its steps; all ranks enter `join` together
        object.__setattr__(model, "join_hook", self._on_join)
        _WATCHED.add(model)

    def take_slot(self) -> None:
        """Register the hook, from the next step on."""
        model = self._model()
        if model is None:
            raise WorldError("the model that this thinwire handle was attached to is gone; attach to a new one.")
        if model._comm_hooks:
            raise WorldError(
                f"this model's hook slot has been taken by {model._comm_hooks[0][0].__qualname__} since thinwire was"
                " attached with nothing to compress, and DDP has only one; attach with the codec you want to use."
            )
        self._take(model)
        self.end()

    def end(self) -> None:
        model = self._model()
        if self._hooks and model is not None:
            _WATCHED.discard(model)
            object.__delattr__(model, "join_hook")
        super().end()

    def _counts(self, module: Any) -> bool:
        return torch.is_grad_enabled() and module.require_backward_grad_sync  # then DDP decides, too

    def _on_join(self, **options: Any) -> Any:
        model = self._model()
        self.take_slot()
        return None if model is None else model.join_hook(**options)  # type: ignore[no-untyped-call]


def release_slot(model: DistributedDataParallel) -> bool:
    """Give DDP's hook slot back, if that is possible; all ranks call it after the same step.

    DDP has no call for it. It gets a new reducer as if it were unpickled (torch 2.9 to 2.13, `__setstate__` in
    nn/parallel/distributed.py), and sorts its buckets anew. One of a static graph would have to learn that again.
    """
    if model.static_graph:
        return False
    model.reducer._remove_autograd_hooks()
    parameters, sparse = model._build_params_for_reducer()  # type: ignore[no-untyped-call]
    names = model._build_debug_param_to_name_mapping(parameters)  # type: ignore[no-untyped-call]
    model._ddp_init_helper(parameters, sparse, names, False)  # type: ignore[no-untyped-call]
    model._comm_hooks.clear()
    return True


def _remove(hooks: list[Any]) -> None:
    for hook in hooks:
        hook.remove()
    hooks.clear()


def not_copied() -> StateError:
    """The error for a model that is copied or pickled with a handle."""
    return StateError("a handle cannot be copied or pickled; save handle.state_dict() and attach again.")


def is_watched(model: DistributedDataParallel) -> bool:
    """Whether a handle already counts the steps of this model."""
    return model in _WATCHED
