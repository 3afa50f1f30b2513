"""All examples in one set of processes; torchrun starts this. Each gets names of its own in the common store."""

import runpy
import sys
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

EXAMPLES = {
    "ddp_minimal": [],
    "plan_by_layer": [],
    "plain_loop": [],
    "outer_steps": [],
    "fsdp_hsdp": [],
    "resume": ["--folder", sys.argv[1]],
}


def main() -> None:
    base, rank, ranks = next(rendezvous("env://"))
    join = dist.init_process_group
    for name, arguments in EXAMPLES.items():

        def join_here(backend: str, *, store: Any = None, name: str = name, **options: Any) -> None:
            options |= {"rank": rank, "world_size": ranks}
            join(backend, store=PrefixStore(name, store or base), **options)

        dist.init_process_group = join_here  # type: ignore[assignment]
        sys.argv = [name, *arguments]
        runpy.run_path(f"examples/{name}.py", run_name="__main__")


if __name__ == "__main__":
    main()
