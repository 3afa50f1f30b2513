"""Steps of a model that FSDP trains: they begin with the first reduction of a backward pass, and end with the pass."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from thinwire.ddp.callbacks import StepCallbacks
from thinwire.ddp.consistency import Fingerprint
from thinwire.ddp.engine import Engine
from thinwire.errors import ThinwireError, WorldError
from thinwire.worlds.distributed import Distributed


class Steps:
    """Counts steps, and ends each one on the thread that trains.

    FSDP reduces a group in the backward pass and waits for it there, so that all work is done in the calling thread. On
    an accelerator it is queued on the stream that FSDP waits for.
    """

    def __init__(
        self,
        engine: Engine,
        world: Distributed,
        everyone: Distributed,
        *,
        check: int,
        scaler: Any,
        replicas: tuple[int, ...],
    ) -> None:
        """`world`: over which gradients are reduced; `replicas`: its ranks as the job counts them; `everyone`: all
        ranks that train the model."""
        self.engine, self.world, self.check = engine, world, check
        self.callbacks = StepCallbacks()
        self.failure: WorldError | None = None
        self._everyone, self._scaler, self._ranks = everyone, scaler, replicas
        self._passes: set[int] = set()  # the backward passes of the step: several, if some run inside of others
        self._seconds = 0.0
        self._fingerprint = Fingerprint()

    @contextmanager
    def reducing(self, names: str) -> Iterator[None]:
        """A reduction of the gradients with these names."""
        if self.failure is not None:
            raise WorldError(f"an earlier reduction failed ({self.failure})") from self.failure
        self._begin()
        began = time.perf_counter()
        try:
            yield
        except Exception as reason:
            said = str(reason) if isinstance(reason, ThinwireError) else f"{type(reason).__name__}: {reason}"
            who = f"rank {self._everyone.rank}, step {self.engine.step}, averaging {names}"
            self.failure = WorldError(f"{said} [{'; '.join([who, *self._members()])}]")
            raise self.failure from reason
        self._seconds += time.perf_counter() - began

    def _members(self) -> list[str]:
        """The ranks of the group as its errors count them, and as the job does, if it counts in another way."""
        if self._ranks == tuple(range(len(self._ranks))):
            return []
        return [
            f"its group: {', '.join(f'rank {own} is rank {its} of the job' for own, its in enumerate(self._ranks))}"
        ]

    def note(self, result: Tensor) -> None:
        """Compare a result with those of the other ranks when the step ends, if it is time to."""
        if self._checks():
            self._fingerprint.add(result)

    def _checks(self) -> bool:
        return self.check > 0 and self.engine.step % self.check == 0

    def _begin(self) -> None:
        current = torch._C._current_graph_task_id()
        if current in self._passes:
            return
        if not self._passes:
            self._seconds = 0.0
            if self._scaler is not None:
                self.engine.rescale(float(self._scaler.get_scale()))
        self._passes.add(current)
        if current != -1:  # FSDP under pipelining reduces after backward passes
            # a callback of the first one runs after those of all roots, in which FSDP may reduce groups
            run = torch.autograd.Variable._execution_engine.queue_callback
            run(lambda: run(self._end))

    def on_pass(self) -> None:
        """FSDP has ended a backward pass of one of its roots; others may follow in the same one."""
        if torch._C._current_graph_task_id() == -1:
            self._end()
        else:
            torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        # reentrant activation checkpointing runs a backward pass inside of a function of another, which goes on
        if not self._passes or torch._C._current_autograd_node() is not None:
            return
        self._passes.clear()
        if self._checks():
            try:
                self._fingerprint.compare(self.world, self.engine.step)
            except WorldError as reason:
                raise WorldError("; ".join([str(reason), *self._members()])) from reason
        if self.engine.skips:
            # a scaler skips a step for all ranks, and other shards have not seen what is not finite in one
            self.engine.overflow = any(self._everyone.gathered(self.engine.overflows(), "the comparison of overflows"))
        self.callbacks.add(self.engine.end_step(self.world.ranks, self._seconds))
        self.callbacks.run()
