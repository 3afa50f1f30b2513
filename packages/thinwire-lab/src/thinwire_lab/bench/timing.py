"""Timing on a noisy machine: candidates take turns with the baseline, and the best of many turns counts."""

import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from thinwire._version import __version__
from thinwire.machine import processor


def best_seconds(candidates: Mapping[str, Callable[[], Any]], turns: int = 7, seconds: float = 0.2) -> dict[str, float]:
    """The least time of one call of each candidate; every turn runs all of them, so that noise meets all alike."""
    calls = {name: _calls_for(run, seconds / turns) for name, run in candidates.items()}
    best = dict.fromkeys(candidates, float("inf"))
    for _ in range(turns):
        for name, run in candidates.items():
            began = time.perf_counter()
            for _ in range(calls[name]):
                run()
            best[name] = min(best[name], (time.perf_counter() - began) / calls[name])
    return best


def _calls_for(run: Callable[[], Any], seconds: float) -> int:
    run()  # first calls allocate and load
    began = time.perf_counter()
    run()
    return max(1, round(seconds / max(time.perf_counter() - began, 1e-7)))


def circumstances() -> dict[str, Any]:
    """Machine, versions and command: what a figure means nothing without; of absolute paths only the last part."""
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "command": " ".join([_program(), *(_without_folders(word) for word in sys.argv[1:])]),
        "cpu": processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "thinwire": __version__,
    }


def _program() -> str:
    """The command's name; `python -m thinwire` is thinwire."""
    path = Path(sys.argv[0])
    return path.parent.name if path.name == "__main__.py" else path.name


def _without_folders(word: str) -> str:
    """The folders of this machine are nobody's business, and results are published."""
    return Path(word).name if Path(word).is_absolute() else word
