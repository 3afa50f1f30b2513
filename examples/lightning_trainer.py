"""A Lightning Trainer that is interrupted and goes on: torchrun --nproc-per-node 2 examples/lightning_trainer.py

Lightning does not restore the position of a DataLoader inside an epoch: checkpoints are written where epochs end.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from thinwire.integrations.lightning import ThinwireCallback

STEPS = 3  # of an epoch: 48 samples, 2 ranks, batches of 8


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.layers(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("lightning-run"))
    parser.add_argument("--steps", type=int, default=6, help="optimizer steps of the whole run")
    parser.add_argument("--stop-at", type=int, default=-1, help="save after this step and stop")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    net = Net()
    data = DataLoader(TensorDataset(torch.randn(48, 32), torch.randint(10, (48,))), batch_size=8, shuffle=False)
    saved = arguments.folder / "saved.ckpt"
    going_on = saved.exists()
    stop = arguments.steps if arguments.stop_at < 0 else arguments.stop_at
    name = "end" if arguments.stop_at < 0 else "saved"
    save = ModelCheckpoint(arguments.folder, filename=name, every_n_epochs=stop // STEPS, save_on_train_epoch_end=True)
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=stop // STEPS,
        logger=CSVLogger(arguments.folder, version="log"),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ThinwireCallback("topk(density=0.05) | rangefloat(bits=8)"), save],  # the one line
    )
    trainer.fit(net, data, ckpt_path=str(saved) if going_on else None, weights_only=going_on or None)


if __name__ == "__main__":
    main()
