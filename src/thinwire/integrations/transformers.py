"""The Trainer of transformers: a callback that compresses, logs, and writes a file for each rank beside checkpoints."""

from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from thinwire.core.plan import PlanLike
from thinwire.ddp.handle import Handle
from thinwire.ddp.single_handle import SingleHandle
from thinwire.dispatch import attach
from thinwire.errors import WorldError
from thinwire.integrations.rank_files import read_state, write_state


class ThinwireCallback(TrainerCallback):
    """Compresses the gradients of a Trainer: `trainer.add_callback(ThinwireCallback(trainer, "qsgd"))`.

    Each rank writes `thinwire-<rank>.pt` into `checkpoint-<step>`, and `trainer.train(resume_from_checkpoint=...)`
    restores it. What the Trainer logs with its loss has the figures of the last step as `thinwire/<name>`.

    Args:
        trainer: The Trainer; callbacks are not told which one calls them. Its `train` and `log` are wrapped.
        plan: As in `thinwire.attach`.
        options: The other arguments of `thinwire.attach`; `scaler` is that of the trainer's accelerator.
    """

    def __init__(self, trainer: Any, plan: PlanLike, **options: Any) -> None:
        if not issubclass(type(trainer), Trainer):  # isinstance would tell mypy that methods cannot be wrapped
            raise WorldError(
                f"ThinwireCallback needs the Trainer first; got {type(trainer).__name__}. Write"
                " trainer.add_callback(ThinwireCallback(trainer, plan))."
            )
        self.trainer, self.plan, self.options = trainer, plan, options
        self.handle: Handle | None = None
        self._folder: str | None = None
        self._train, self._log = trainer.train, trainer.log
        trainer.train, trainer.log = self._train_from, self._log_figures

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The Trainer has wrapped the model and loaded its own checkpoint."""
        self._close()
        scaler = self.trainer.accelerator.scaler
        self.handle = attach(self.trainer.model_wrapped, self.plan, **{"scaler": scaler, **self.options})
        if isinstance(self.handle, SingleHandle):
            self.handle.count_when(lambda: bool(self.trainer.accelerator.sync_gradients))
        if self._folder is not None:
            read_state(self.handle, self._folder)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """All ranks come here after the Trainer has written its own files."""
        if self.handle is not None and not args.save_only_model:
            write_state(self.handle, Path(args.output_dir) / f"checkpoint-{state.global_step}")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the threads of the handle."""
        self._close()

    def _train_from(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Callbacks are not told from which folder the Trainer goes on: this notes it."""
        found = resume_from_checkpoint
        self._folder = get_last_checkpoint(self.trainer.args.output_dir) if found is True else (found or None)
        return self._train(resume_from_checkpoint, *args, **kwargs)

    def _log_figures(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        metrics = None if self.handle is None or "loss" not in logs else self.handle.metrics()
        if metrics is not None:
            logs |= {f"thinwire/{name}": float(value) for name, value in metrics.scalars().items()}
        self._log(logs, *args, **kwargs)

    def _close(self) -> None:
        if self.handle is not None:
            self.handle.close()
            self.handle = None
