"""Lightning: a callback that compresses, logs, and keeps the state of all ranks in Lightning's checkpoint."""

from typing import Any

from lightning.pytorch import Callback

from thinwire.core.plan import PlanLike
from thinwire.ddp.handle import Handle
from thinwire.ddp.single_handle import SingleHandle
from thinwire.dispatch import attach


class ThinwireCallback(Callback):
    """Compresses the gradients of `Trainer(strategy="ddp", callbacks=[ThinwireCallback("qsgd")])`.

    Lightning's checkpoints then hold the state of every rank, and `fit(ckpt_path=...)` restores it. The figures of the
    last step are logged as `thinwire/<name>`.

    Args:
        plan: As in `thinwire.attach`.
        options: The other arguments of `thinwire.attach`; `scaler` is that of the trainer's precision plugin.
    """

    def __init__(self, plan: PlanLike, **options: Any) -> None:
        self.plan, self.options = plan, options
        self.handle: Handle | None = None
        self._batch = 0  # of the epoch
        self._saved: dict[str, Any] | None = None  # by an earlier run, until there is a handle to load it
        self._ended: dict[str, Any] | None = None  # the state with which training ended

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """The model has just been wrapped; Lightning restored the callbacks before that."""
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self.handle = attach(trainer.strategy.model, self.plan, **{"scaler": scaler, **self.options})
        if isinstance(self.handle, SingleHandle):
            self.handle.count_when(
                lambda: trainer.is_last_batch or (self._batch + 1) % trainer.accumulate_grad_batches == 0
            )
        if self._saved is not None:
            self.handle.load_state_dict(self._saved)
            self._saved = None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Note which batches Lightning accumulates."""
        self._batch = batch_idx

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log the figures of the last step."""
        metrics = None if self.handle is None else self.handle.metrics()
        if metrics is not None:
            pl_module.log_dict({f"thinwire/{name}": float(value) for name, value in metrics.scalars().items()})

    def state_dict(self) -> dict[str, Any]:
        """The state of all ranks. Lightning calls it on every rank and writes that of rank 0."""
        if self.handle is None:
            return self._saved or self._ended or {}
        return self.handle.full_state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep what was saved until the model is wrapped."""
        self._saved = state_dict

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End the threads of the handle; its state stays for a checkpoint that is written after `fit`."""
        if self.handle is not None:
            self._ended = self.handle.full_state_dict()
            self.handle.close()
            self.handle = None
