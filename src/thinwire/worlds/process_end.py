"""How a process ends that never destroyed its process groups: it first waits until Gloo's threads sleep.

A thread of Gloo that has completed a collective frees its tensors after it has woken the caller, and needs Python's
lock for that. If the caller's program is over by then, Python ends the thread in the middle of a C++ destructor, and
the process aborts ("terminate called without an active exception"). On a busy host that happens with plain DDP too.
"""

import time
from pathlib import Path

_LONGEST = 10.0  # seconds; a thread that waits for a peer sleeps, so that only a busy host needs more than milliseconds
_PAUSE = 0.001
_THREAD = "pt_gloo_runloop"  # torch's name for them


def _gloo_threads_sleep() -> bool:
    """Whether the kernel has nothing to run in any of them. False only where it shows that: on Linux."""
    for status in Path("/proc/self/task").glob("*/stat"):
        try:
            _, _, rest = status.read_text().partition("(")
        except OSError:  # a thread that has ended
            continue
        name, _, fields = rest.rpartition(") ")
        if name == _THREAD and not fields.startswith("S"):
            return False
    return True


def wait_for_gloo() -> None:
    """Wait until Gloo's threads have slept twice in a row.

    Between the two looks this thread has no Python lock: a thread that slept because it waits for the lock is
    running at the second.
    """
    end, asleep = time.monotonic() + _LONGEST, 0
    while asleep < 2 and time.monotonic() < end:
        asleep = asleep + 1 if _gloo_threads_sleep() else 0
        time.sleep(_PAUSE)
