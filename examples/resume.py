"""Training that survives the death of a rank, with nothing lost.

    torchrun --nproc-per-node 2 --max-restarts 1 examples/resume.py --folder checkpoints --die-at 12

Every few steps each rank writes its own file: the model, the optimizer and thinwire's memory. When a rank dies, the
others fail within the time-out, torchrun starts all of them again, and they go on from the last step that every rank
has written. The end is the same, bit for bit, as without the death.
"""

import argparse
import os
import signal
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

import thinwire


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Data by step and rank, so that a resumed run sees what the dead one would have seen."""
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    return torch.randn(32, 64, generator=generator), torch.randint(10, (32,), generator=generator)


def last_complete(folder: Path) -> int | None:
    """The newest step whose files are all there. Written under another name first, a file that exists is whole."""
    steps = {int(path.stem.split("-")[0]) for path in folder.glob("*-*.pt")}
    complete = [s for s in steps if all((folder / f"{s}-{rank}.pt").exists() for rank in range(dist.get_world_size()))]
    return max(complete, default=None)


def save(path: Path, content: dict[str, object]) -> None:
    torch.save(content, path.with_suffix(".part"))
    os.replace(path.with_suffix(".part"), path)


def join(life: int) -> None:
    """Join the others. torchrun keeps its store over restarts, with the addresses of the dead (PyTorch issue 135712):
    each life needs names of its own."""
    store, rank, ranks = next(rendezvous("env://"))
    store = PrefixStore(f"life-{life}", store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=20))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--die-at", type=int, default=-1, help="in its first life, the last rank dies in this step")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)

    life = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    join(life)
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
    handle = thinwire.attach(model, "topk(density=0.05) | rangefloat(bits=8)")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    done = last_complete(folder)
    dist.barrier()  # nobody writes before everybody has looked
    if done is not None:
        saved = torch.load(folder / f"{done}-{rank}.pt", weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        handle.load_state_dict(saved["thinwire"])
        print(f"rank {rank} goes on from step {done}", flush=True)

    for step in range(done or 0, arguments.steps):
        x, y = batch(step)
        loss = nn.functional.cross_entropy(model(x), y)
        if step == arguments.die_at and life == 0 and rank == dist.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % arguments.every == 0:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            save(folder / f"{step + 1}-{rank}.pt", {**state, "thinwire": handle.state_dict()})

    print(f"rank {rank} ends with loss {loss.item():.4f}", flush=True)
    handle.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
