"""A Trainer of transformers that is interrupted and goes on:

    torchrun --nproc-per-node 2 examples/transformers_trainer.py

The model is made from a configuration; nothing is downloaded.
"""

import argparse
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from thinwire.integrations.transformers import ThinwireCallback


class Tokens(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(64, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("transformers-run"))
    parser.add_argument("--steps", type=int, default=6, help="optimizer steps of the whole run")
    parser.add_argument("--stop-at", type=int, default=-1, help="stop after this step")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=1, n_head=2))
    options = TrainingArguments(
        output_dir=str(arguments.folder),
        max_steps=arguments.steps,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        save_steps=3,
        logging_steps=1,
        learning_rate=1e-2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=options, train_dataset=Tokens())
    trainer.add_callback(ThinwireCallback(trainer, "topk(density=0.05) | rangefloat(bits=8)"))  # the one line
    if arguments.stop_at > 0:
        stop_after(trainer, arguments.stop_at)
    going_on = (arguments.folder / "checkpoint-3").exists()
    trainer.train(resume_from_checkpoint=str(arguments.folder / "checkpoint-3") if going_on else None)


def stop_after(trainer: Trainer, step: int) -> None:
    """Pretend that the machine is taken away: training ends after `step`, with the learning rate of the whole run."""
    from transformers import TrainerCallback

    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
            control.should_training_stop = state.global_step >= step
            return control

    trainer.add_callback(Stop())


if __name__ == "__main__":
    main()
