"""The examples run as they stand, and one of them survives the death of a rank."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


def torchrun(*arguments: str) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.distributed
@pytest.mark.timeout(240)
def test_examples_run_and_a_killed_rank_changes_nothing(tmp_path: Path) -> None:
    told = torchrun("tests/ddp/run_examples.py", str(tmp_path / "undisturbed"))
    assert "times fewer bytes than fp32" in told
    assert "hidden.weight  topk(density=0.02)" in told
    assert "thinwire after 30 steps" in told
    assert "bytes sent in the last step" in told
    assert "bytes sent a step" in told
    assert "bytes a step (7.2 times fewer)" in told
    killed = tmp_path / "killed"
    told = torchrun("--max-restarts", "1", "examples/resume.py", "--folder", str(killed), "--die-at", "12")
    assert told.count("goes on from step 10") == 2
    for rank in range(2):
        one, other = (
            torch.load(tmp_path / run / f"20-{rank}.pt", weights_only=True) for run in ("undisturbed", killed)
        )
        for name, parameter in one["model"].items():
            assert torch.equal(parameter, other["model"][name])
        slots = one["thinwire"][f"rank{rank}"]
        assert slots
        for name, slot in slots.items():
            assert torch.equal(slot["residual"], other["thinwire"][f"rank{rank}"][name]["residual"])


def test_the_smallest_examples_stay_small() -> None:
    for name in ("ddp_minimal", "outer_steps", "fsdp_hsdp"):
        assert len((ROOT / "examples" / f"{name}.py").read_text().splitlines()) <= 40
