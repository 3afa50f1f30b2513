"""Front ends hand back an unwrapped model in one process: the same lines work there, with checkpoints and figures."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import thinwire

pytestmark = [
    pytest.mark.timeout(150),
    pytest.mark.filterwarnings("ignore:thinwire is attached to a model that one process trains alone"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of Lightning, about torch
]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))


def batches() -> DataLoader[Any]:
    torch.manual_seed(0)
    return DataLoader(TensorDataset(torch.randn(24, 32), torch.randint(10, (24,))), batch_size=8)


@pytest.fixture
def accelerator() -> Iterator[Any]:
    accelerate = pytest.importorskip("accelerate")
    yield accelerate.Accelerator(cpu=True)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def test_accelerate_saves_and_restores(accelerator: Any, tmp_path: Path) -> None:
    from thinwire.integrations.accelerate import attach

    model, data = accelerator.prepare(net(), batches())
    handle = attach(accelerator, model, "topk(density=0.05)")
    for x, y in data:
        accelerator.backward(nn.functional.cross_entropy(model(x), y))
    assert handle.step == 3
    accelerator.save_state(str(tmp_path))
    handle.engine.step = 0
    accelerator.load_state(str(tmp_path))
    assert handle.step == 3
    with pytest.raises(thinwire.WorldError, match=r"already saves the state of one thinwire handle; .* close\(\)"):
        attach(accelerator, model, "qsgd")
    with pytest.raises(thinwire.WorldError, match=r"needs the Accelerator first; got Sequential\. Write"):
        attach(model, accelerator, "qsgd")
    handle.close()
    again = attach(accelerator, model, "topk(density=0.05)")
    accelerator.load_state(str(tmp_path))
    assert (again.step, handle.step) == (3, 3)
    again.engine.step = 8
    accelerator.save_state(str(tmp_path / "again"))
    assert torch.load(tmp_path / "again" / "thinwire-0.pt", weights_only=True)["step"] == 8
    again.close()


def test_accelerate_counts_the_steps_of_an_accumulation(accelerator: Any) -> None:
    from thinwire.integrations.accelerate import attach

    accelerator.gradient_accumulation_steps = 2
    model, data = accelerator.prepare(net(), batches())
    handle = attach(accelerator, model, "qsgd")
    for x, y in data:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
    assert handle.step == 2  # of two batches, and of the last one
    handle.close()


def test_lightning_trains_logs_and_restores(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    from thinwire.integrations.lightning import ThinwireCallback

    class Net(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layers = net()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit(epochs: int, start: str | None, accumulated: int = 1) -> Any:
        options = {
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": False,
        }
        callback = ThinwireCallback("topk(density=0.05)")
        trainer = lightning.Trainer(
            accelerator="cpu", devices=1, max_epochs=epochs, default_root_dir=tmp_path, callbacks=[callback],
            accumulate_grad_batches=accumulated, **options,
        )  # fmt: skip
        trainer.fit(Net(), batches(), ckpt_path=start, weights_only=start and True)
        return trainer

    trainer = fit(1, None)
    assert trainer.callback_metrics["thinwire/bytes_sent"] == 0
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    saved = torch.load(tmp_path / "saved.ckpt", weights_only=True)["callbacks"]["ThinwireCallback"]
    assert saved["step"] == 3
    trainer = fit(2, str(tmp_path / "saved.ckpt"))
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    assert torch.load(tmp_path / "end.ckpt", weights_only=True)["callbacks"]["ThinwireCallback"]["step"] == 6
    fit(2, None, accumulated=2).save_checkpoint(tmp_path / "accumulated.ckpt")
    saved = torch.load(tmp_path / "accumulated.ckpt", weights_only=True)["callbacks"]["ThinwireCallback"]
    assert saved["step"] == 4  # of three batches in each epoch


def test_fabric_hands_its_module_to_attach() -> None:
    fabric = pytest.importorskip("lightning.fabric").Fabric(accelerator="cpu", devices=1)
    model, _optimizer = fabric.setup(net(), torch.optim.SGD(net().parameters(), lr=0.1))
    handle = thinwire.attach(model, "qsgd")
    for x, y in batches():
        fabric.backward(nn.functional.cross_entropy(model(x), y))
    assert handle.step == 3
    assert next(decision.name for decision in handle.plan) == "0.weight"
    handle.close()


def test_the_trainer_of_transformers_logs_and_restores(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from thinwire.integrations.transformers import ThinwireCallback

    config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=1, n_head=2)
    tokens = torch.randint(64, (16, 16), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": row, "labels": row} for row in tokens]

    def train(steps: int, start: str | None, accumulated: int = 1) -> Any:
        torch.manual_seed(0)
        options = transformers.TrainingArguments(
            output_dir=str(tmp_path), max_steps=steps, per_device_train_batch_size=4, save_steps=2, logging_steps=1,
            use_cpu=True, report_to=[], disable_tqdm=True, gradient_accumulation_steps=accumulated,
        )  # fmt: skip
        trainer = transformers.Trainer(transformers.GPT2LMHeadModel(config), options, train_dataset=data)
        trainer.add_callback(ThinwireCallback(trainer, "topk(density=0.05)"))
        trainer.train(resume_from_checkpoint=start)
        return trainer

    trainer = train(2, None)
    assert trainer.state.log_history[0]["thinwire/bytes_sent"] == 0
    assert torch.load(tmp_path / "checkpoint-2" / "thinwire-0.pt", weights_only=True)["step"] == 2
    train(4, str(tmp_path / "checkpoint-2"))
    assert torch.load(tmp_path / "checkpoint-4" / "thinwire-0.pt", weights_only=True)["step"] == 4
    train(2, None, accumulated=2)
    assert torch.load(tmp_path / "checkpoint-2" / "thinwire-0.pt", weights_only=True)["step"] == 2


def test_the_trainer_and_the_plan_in_the_wrong_order_are_named() -> None:
    pytest.importorskip("transformers")
    from thinwire.integrations.transformers import ThinwireCallback

    with pytest.raises(thinwire.WorldError, match=r"needs the Trainer first; got str\. Write trainer\.add_callback"):
        ThinwireCallback("qsgd", "trainer")


def test_a_plain_model_beside_a_trainer_is_told_both_lines(accelerator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers").Trainer  # noqa: B018  # loads its module
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(thinwire.WorldError, match=r"prepare\(model\) first.*ThinwireCallback\(trainer, plan"):
        thinwire.attach(net(), "qsgd")
