"""The example of Ray Train, interrupted and resumed by new workers, ends bit for bit as without interruption."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0"}  # nothing is sent anywhere
    done = subprocess.run(
        [sys.executable, "examples/ray_train.py", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def end_of(folder: Path) -> list[Any]:
    names = ("model.pt", "thinwire-0.pt", "thinwire-1.pt")
    return [torch.load(folder / "end" / "checkpoint" / name, weights_only=True) for name in names]


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.timeout(900)
def test_an_interrupted_run_ends_as_one_that_was_not(tmp_path: Path) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed")
    run("--folder", str(tmp_path / "resumed"), "--stop-at", "3")
    run("--folder", str(tmp_path / "resumed"))
    run("--folder", str(tmp_path / "whole"))
    resumed, whole = end_of(tmp_path / "resumed"), end_of(tmp_path / "whole")
    for name, value in whole[0]["model"].items():
        assert torch.equal(resumed[0]["model"][name], value), name
    for rank in range(2):
        residual = whole[1 + rank][f"rank{rank}"]["0.weight"]["residual"]
        assert bool(residual.any())
        assert torch.equal(resumed[1 + rank][f"rank{rank}"]["0.weight"]["residual"], residual)
