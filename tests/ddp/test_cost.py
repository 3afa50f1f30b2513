"""What thinwire costs that is not communication: imports and memory."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.ddp.cases_metrics import grown
from tests.distributed.processes import run_ranks

ROOT = Path(__file__).resolve().parents[2]
IMPORTED = """
import sys, torch
before = set(sys.modules)
from thinwire import attach
print(*sorted({name.split(".")[0] for name in set(sys.modules) - before}))
"""


def test_importing_thinwire_imports_nothing_heavy() -> None:
    """Beyond torch only thinwire itself and the standard library: no tables, plots, YAML or command line."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT / "src")},
    )
    assert set(done.stdout.split()) <= {"thinwire", "numpy", *sys.stdlib_module_names}


def train_long(rank: int, ranks: int) -> tuple[int, int]:
    return grown(2000, rank)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.timeout(600)
def test_memory_does_not_grow_over_two_thousand_steps() -> None:
    for objects, process in run_ranks(2, train_long, seconds=580):
        assert objects < 50
        assert process < 4 * 1024 * 1024
