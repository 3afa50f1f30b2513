"""A program that is over while a thread still works: `python -m tests.ddp.last_work gloo|lane|failed STORE`.

The work prints "done" if Python lets it come to its end.
"""

import hashlib
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from thinwire.ddp.lane import Lane
from thinwire.worlds.distributed import Distributed

GLOO = "pt_gloo_runloop"  # how torch names the threads of Gloo
LANES: list[Lane] = []  # a lane that nobody has is closed
SECONDS = {"lane": 2.5, "failed": 40.0}  # of the lane's job


def work_as_gloo() -> None:
    """What Gloo's threads do after a collective: work without Python's lock, then a little with it."""
    until = time.monotonic() + 20
    while GLOO not in [name.read_text().strip() for name in Path("/proc/self/task").glob("*/comm")]:
        assert time.monotonic() < until, "torch names them in another way"
        time.sleep(0.01)  # a thread names itself when it begins
    named = threading.Event()

    def work() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(GLOO)
        named.set()
        hashlib.pbkdf2_hmac("sha256", b"some work", b"without the lock", 300_000)
        print("done", flush=True)

    threading.Thread(target=work, daemon=True).start()
    named.wait()


def main() -> None:
    mode, store = sys.argv[1:]
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1, timeout=timedelta(seconds=20))
    if mode == "gloo":
        work_as_gloo()
        return
    assert dist.group.WORLD is not None
    lane = Lane(dist.group.WORLD, torch.device("cpu"), None)

    def job(world: Distributed) -> None:
        time.sleep(SECONDS[mode])
        print("done", flush=True)

    lane.queue(job, [])
    LANES.append(lane)
    if mode == "failed":
        raise ArithmeticError("while a peer waits elsewhere")


if __name__ == "__main__":
    main()
