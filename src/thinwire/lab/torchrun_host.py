"""torchrun on one host of a lab: `python -m torch.distributed.run` whose exit code is that of the script.

torchrun itself always ends with 1 and a long report. Runs as a script of its own, started by the launcher.
"""

import importlib
import sys


def main(argv: list[str]) -> int:
    """Runs torchrun; its first failing worker decides the exit code, as in a shell (128 + signal)."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

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
