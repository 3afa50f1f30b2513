"""One rank of one revision: it opens a case and measures it, each time that its input asks for it, until that ends.

python -m benchmarks.revisions.worker, started by `sides` with the Python in whose environment a revision is installed.
"""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import thinwire
from benchmarks.revisions.cases import Case
from benchmarks.revisions.workloads import Workload, build_workload

PEER_TIMEOUT = timedelta(seconds=120)
PAUSE = 0.02  # seconds in which all ranks learn when they begin


class Worker:
    """Holds the case that is open."""

    def __init__(self) -> None:
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.workload: Workload | None = None
        if self.ranks > 1:
            dist.init_process_group("gloo", timeout=PEER_TIMEOUT)

    def reply(self, request: dict[str, Any]) -> dict[str, Any]:
        if "case" in request:
            self.close()
            try:
                self.workload = build_workload(Case(**request["case"]), self.rank)
            except Exception as error:
                return {"refused": f"{type(error).__name__}: {error}"}
        return self.measure(request["calls"])

    def measure(self, calls: int) -> dict[str, float]:
        """Seconds of one call on this rank, by the clock and of the processor, from when all ranks begin."""
        assert self.workload is not None
        began = self.common_start()
        used = time.process_time()
        for _ in range(calls):
            self.workload.call()
        ended = time.perf_counter()
        return {"wall": (ended - began) / calls, "processor": (time.process_time() - used) / calls}

    def common_start(self) -> float:
        """A moment at which all ranks go on: from a barrier, some would go on milliseconds after the others."""
        if self.ranks == 1:
            return time.perf_counter()
        dist.barrier()
        moment = torch.tensor([time.perf_counter() + PAUSE], dtype=torch.float64)
        dist.broadcast(moment, 0)
        time.sleep(max(0.0, float(moment) - time.perf_counter()))
        return float(moment)

    def close(self) -> None:
        if self.workload is not None:
            self.workload.close()
        self.workload = None

    def end(self) -> None:
        self.close()
        if self.ranks > 1:
            dist.barrier()
            dist.destroy_process_group()


def check_place(module: Path, environment: Path) -> None:
    """Both sides would measure the same files if an environment led to another installation."""
    if not module.resolve().is_relative_to(environment.resolve()):
        raise SystemExit(
            f"thinwire comes from {module}, not from the installation in {environment}; remove that installation."
        )


def main() -> None:
    # Replies have a file of their own: what libraries print goes to the standard error.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    check_place(Path(thinwire.__file__), Path(sys.prefix))
    worker = Worker()
    for line in sys.stdin:
        replies.write(json.dumps(worker.reply(json.loads(line))) + "\n")
        replies.flush()
    worker.end()


if __name__ == "__main__":
    main()
