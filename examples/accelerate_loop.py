"""A loop of Accelerate that is interrupted and goes on: torchrun --nproc-per-node 2 examples/accelerate_loop.py

`save_state` and `load_state` keep thinwire's memory of every rank; nothing else is needed.
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from thinwire.integrations.accelerate import attach


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("accelerate-run"))
    parser.add_argument("--steps", type=int, default=6, help="optimizer steps of the whole run")
    parser.add_argument("--stop-at", type=int, default=-1, help="save after this step and stop")
    arguments = parser.parse_args()

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    data = DataLoader(TensorDataset(torch.randn(192, 32), torch.randint(10, (192,))), batch_size=8)
    model, optimizer, data = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), data)
    handle = attach(accelerator, model, "topk(density=0.05) | rangefloat(bits=8)")  # the one line

    saved = arguments.folder / "saved"
    done = 0
    if saved.exists():
        accelerator.load_state(str(saved))
        done = handle.step
        accelerator.print(f"goes on from step {done}")
    for x, y in accelerator.skip_first_batches(data, 2 * done):
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients and handle.step in (arguments.stop_at, arguments.steps):
            break
    accelerator.save_state(str(saved if handle.step == arguments.stop_at else arguments.folder / "end"))
    metrics = handle.metrics()
    if metrics is not None:
        accelerator.print(f"step {handle.step}, {metrics.wire_ratio:.1f} times fewer bytes than fp32")
    handle.close()
    accelerator.end_training()


if __name__ == "__main__":
    main()
