"""Runs one function in several processes joined by Gloo, with a time limit that fails loudly."""

import multiprocessing
import os
import pickle
import socket
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


def _child(
    rank: int, ranks: int, store: str, body: Callable[..., Any], args: tuple[Any, ...], queue: Any, together: bool
) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=timedelta(seconds=30)
        )
        result = body(rank, ranks, *args)
        if together:
            dist.barrier()
        # As bytes: a queue hands tensors over as shared memory, which is gone if this process ends before it is read.
        queue.put((rank, True, pickle.dumps(result)))
        dist.destroy_process_group()
    except BaseException:
        queue.put((rank, False, traceback.format_exc()))


def run_ranks(ranks: int, body: Callable[..., Any], *args: Any, seconds: float = 90, dying: int = 0) -> list[Any]:
    """`body(rank, ranks, *args)` on every rank; returns what each returned. `body` must be importable.

    The last `dying` ranks are expected to die without a word.
    """
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, f"store-{socket.gethostname()}")
        children = [
            context.Process(target=_child, args=(rank, ranks, store, body, args, queue, not dying), daemon=True)
            for rank in range(ranks)
        ]
        for child in children:
            child.start()
        try:
            results: dict[int, Any] = {}
            for _ in children[dying:]:
                rank, fine, value = queue.get(timeout=seconds)
                assert fine, f"rank {rank} failed:\n{value}"
                results[rank] = pickle.loads(value)
            return [results[rank] for rank in range(ranks - dying)]
        finally:
            for child in children:
                child.join(timeout=5)
                if child.is_alive():
                    child.kill()
