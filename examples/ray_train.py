"""Workers of Ray Train that are interrupted and go on: python examples/ray_train.py

The model and the optimizer are written by one worker, thinwire's state by each; Ray makes one checkpoint of all.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from torch import nn

import thinwire
from thinwire.integrations.ray import report, restore


def worker(settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    rank = ray.train.get_context().get_world_rank()
    model = prepare_model(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    handle = thinwire.attach(model, "topk(density=0.05) | rangefloat(bits=8)")  # the one line

    checkpoint = ray.train.get_checkpoint()  # of workers that Ray starts again
    if checkpoint is None and settings["saved"] is not None:
        checkpoint = ray.train.Checkpoint.from_directory(settings["saved"])
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder) / "model.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        restore(handle, checkpoint)
    while handle.step < settings["steps"]:
        random = torch.Generator().manual_seed(100 * handle.step + rank)
        x, y = torch.randn(8, 32, generator=random), torch.randint(10, (8,), generator=random)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with tempfile.TemporaryDirectory() as folder:
        if rank == 0:
            saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(saved, Path(folder) / "model.pt")
        report(handle, {"loss": loss.item()}, folder)
    handle.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("ray-run"))
    parser.add_argument("--steps", type=int, default=6, help="steps of the whole run")
    parser.add_argument("--stop-at", type=int, default=-1, help="save after this step and stop")
    arguments = parser.parse_args()

    folder = arguments.folder.resolve()
    saved = folder / "saved" / "checkpoint"
    stop = arguments.steps if arguments.stop_at < 0 else arguments.stop_at
    ray.init(num_cpus=2, include_dashboard=False)
    trainer = TorchTrainer(
        worker,
        train_loop_config={"steps": stop, "saved": str(saved) if saved.exists() else None},
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(storage_path=str(folder), name="end" if arguments.stop_at < 0 else "saved"),
    )
    result = trainer.fit()
    assert result.checkpoint is not None
    assert result.metrics is not None
    Path(result.checkpoint.path).rename(Path(result.path) / "checkpoint")
    print(f"stopped after step {stop}, loss {result.metrics['loss']:.3f}")


if __name__ == "__main__":
    main()
