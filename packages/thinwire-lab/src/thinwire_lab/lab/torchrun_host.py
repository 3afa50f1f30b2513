"""torchrun on one host of a lab: `python -m torch.distributed.run` whose exit code is that of the script.

torchrun itself always ends with 1 and a long report. Runs as a script of its own, started by the launcher.
"""

import importlib
import sys
import time
from typing import Any

_LEFT = "thinwire/left"
_PATIENCE = 10.0  # seconds for the other hosts to say good-bye


def leave_last(rendezvous: Any) -> bool:
    """Takes the place of a static rendezvous' `shutdown`, which torchrun calls when a host has nothing left to do.

    The first host holds the store at which all others still wait in torchrun's exit barrier. If it left at once, they
    would fill the output with tracebacks of a lost connection; so it stays until they have gone.
    """
    store = getattr(rendezvous, "_store", None)
    if store is None or sys.exc_info()[0] is not None:  # a failed host leaves at once, so that the others notice
        return True
    try:
        if rendezvous.rank > 0:
            store.add(_LEFT, 1)
        deadline = time.monotonic() + _PATIENCE
        while rendezvous.rank == 0 and store.add(_LEFT, 0) < rendezvous.world_size - 1 and time.monotonic() < deadline:
            time.sleep(0.01)
    except RuntimeError:
        pass  # the store is gone, and with it what this was for
    return True


def main(argv: list[str]) -> int:
    """Runs torchrun; its first failing worker decides the exit code, as in a shell (128 + signal)."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

    StaticTCPRendezvous.shutdown = leave_last  # type: ignore[assignment, method-assign]
    torchrun = importlib.import_module("torch.distributed.run")
    try:
        torchrun.run(torchrun.parse_args(argv))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        code = failure.exitcode
        what = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        print(f"rank {rank} {what}", flush=True)
        return 128 - code if code < 0 else code
    except SignalException as error:
        return 128 + error.sigval
    return 0


if __name__ == "__main__":
    del sys.path[0]  # this folder; its modules are not for the worker
    raise SystemExit(main(sys.argv[1:]))
