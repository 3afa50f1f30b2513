"""A user's script, run for some steps with an observer on its DDP model, and stopped then."""

import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from thinwire.errors import WorldError
from thinwire.planner.measure import profile_of
from thinwire.planner.observe import Observer, check_plain
from thinwire.planner.profile import Profile
from thinwire.worlds.distributed import Distributed


class _Enough(BaseException):
    """Raised inside the script when enough steps have been seen; no `except Exception` of the script stops it."""


def profile_of_script(argv: Sequence[str], steps: int, candidates: Sequence[str] | None) -> Profile:
    """The profile of the first DDP model that a script trains; the script ends after `steps` of its steps.

    Args:
        argv: The script and its arguments, or `-m`, a module and its arguments.
        steps: Steps to look at.
        candidates: Codecs; None takes the usual ones.
    """
    found: list[Profile] = []
    joined = dist.is_initialized()
    with _observed(steps, candidates, found), suppress(_Enough):
        _run(argv)
    if dist.is_initialized() and not joined:  # the script's own group, which it could not end
        dist.destroy_process_group()
    if not found:
        raise WorldError(
            f"the script ended before {steps} steps of a DistributedDataParallel model; let it train for longer, or"
            " give a smaller --steps."
        )
    return found[0]


def _run(argv: Sequence[str]) -> None:
    if argv[0] == "-m":
        sys.argv = list(argv[1:])
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(argv)
        runpy.run_path(argv[0], run_name="__main__")


@contextmanager
def _observed(steps: int, candidates: Sequence[str] | None, found: list[Profile]) -> Iterator[None]:
    """Every DDP model that is made meanwhile is observed; the first that has made enough steps is profiled."""
    original = DistributedDataParallel.__init__
    observers: list[Observer] = []

    def begin(self: DistributedDataParallel, *args: Any, **options: Any) -> None:
        original(self, *args, **options)

        def ended(count: int) -> None:
            if count >= steps:
                check_plain(self)
                found.append(profile_of(observer, Distributed(self.process_group), candidates))
                raise _Enough

        observer = Observer(self, ended)
        observers.append(observer)

    DistributedDataParallel.__init__ = begin  # type: ignore[method-assign]
    try:
        yield
    finally:
        DistributedDataParallel.__init__ = original  # type: ignore[method-assign]
        for observer in observers:
            observer.close()
