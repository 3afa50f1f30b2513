"""Ray Train: the state of every worker in the checkpoint that the workers report together."""

from pathlib import Path
from typing import Any

from thinwire.integrations.rank_files import Saves, read_state, write_state


def report(handle: Saves, metrics: dict[str, Any], folder: str | Path) -> None:
    """Write this worker's state into `folder` and report the folder as checkpoint with `metrics`; all workers call it.

    Ray merges the folders of all workers into one checkpoint; the other files in `folder` are the caller's own.

    Args:
        handle: What `thinwire.attach(ray.train.torch.prepare_model(net), ...)` returned.
        metrics: What `ray.train.report` takes.
        folder: A folder of this worker, with what else belongs into the checkpoint.
    """
    import ray.train

    write_state(handle, folder)
    ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(str(folder)))


def restore(handle: Saves, checkpoint: Any = None) -> bool:
    """Go on from a checkpoint; all workers call it.

    Args:
        handle: What `thinwire.attach(ray.train.torch.prepare_model(net), ...)` returned.
        checkpoint: A `ray.train.Checkpoint`; None takes the one that Ray gives to workers which it starts again.

    Returns:
        Whether there was a checkpoint.
    """
    import ray.train

    checkpoint = checkpoint or ray.train.get_checkpoint()
    if checkpoint is None:
        return False
    with checkpoint.as_directory() as folder:
        read_state(handle, folder)
    return True
