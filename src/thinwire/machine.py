"""What speeds on this machine depend on."""

import os
import platform
from pathlib import Path
from typing import Any

from thinwire.kernels.native import NATIVE


def machine() -> dict[str, Any]:
    """System, processor, cores, memory, and whether the kernels are compiled."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "native": NATIVE is not None,
    }


def processor() -> str:
    """The name that the processor has for people, where the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
