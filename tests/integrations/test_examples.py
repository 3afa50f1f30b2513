"""The example of each framework, interrupted and resumed by new processes, ends bit for bit as without interruption."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


def run(example: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    environment |= {"HF_HUB_OFFLINE": "1"}  # nothing is downloaded
    done = subprocess.run(
        [*command, f"examples/{example}.py", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def end_of_accelerate(folder: Path) -> list[dict[str, Any]]:
    return [weights(folder / "end" / "model.safetensors"), *rank_files(folder / "end")]


def end_of_lightning(folder: Path) -> list[dict[str, Any]]:
    saved = torch.load(folder / "end.ckpt", weights_only=True)
    return [saved["state_dict"], saved["callbacks"]["ThinwireCallback"]]


def end_of_transformers(folder: Path) -> list[dict[str, Any]]:
    return [weights(folder / "checkpoint-6" / "model.safetensors"), *rank_files(folder / "checkpoint-6")]


def weights(path: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(path)


def rank_files(folder: Path) -> list[dict[str, Any]]:
    return [torch.load(folder / f"thinwire-{rank}.pt", weights_only=True) for rank in range(2)]


def tensors(nested: Any, at: str = "") -> dict[str, torch.Tensor]:
    if isinstance(nested, torch.Tensor):
        return {at: nested}
    items = nested.items() if isinstance(nested, dict) else enumerate(nested) if isinstance(nested, list) else ()
    return {name: value for key, inner in items for name, value in tensors(inner, f"{at}/{key}").items()}


@pytest.mark.distributed
@pytest.mark.timeout(340)
@pytest.mark.parametrize(
    ("framework", "example", "end"),
    [
        ("accelerate", "accelerate_loop", end_of_accelerate),
        ("lightning", "lightning_trainer", end_of_lightning),
        ("transformers", "transformers_trainer", end_of_transformers),
    ],
)
def test_an_interrupted_run_ends_as_one_that_was_not(tmp_path: Path, framework: str, example: str, end: Any) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    run(example, "--folder", str(tmp_path / "resumed"), "--stop-at", "3")
    with pytest.raises(FileNotFoundError):
        end(tmp_path / "resumed")
    run(example, "--folder", str(tmp_path / "resumed"))
    run(example, "--folder", str(tmp_path / "whole"))
    resumed, whole = tensors(end(tmp_path / "resumed")), tensors(end(tmp_path / "whole"))
    assert resumed.keys() == whole.keys()
    assert [name for name in whole if not torch.equal(whole[name], resumed[name])] == []
    for rank in range(2):  # the comparison has seen the state of every rank, and it is not empty
        residuals = [value for name, value in whole.items() if f"/rank{rank}/" in name and name.endswith("/residual")]
        assert any(bool(residual.any()) for residual in residuals)
