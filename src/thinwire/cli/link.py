"""`thinwire doctor --link`: what the link between the ranks carries, and whose is broken."""

import json
import os
from typing import TYPE_CHECKING

import typer

from thinwire.errors import WorldError

if TYPE_CHECKING:
    from thinwire.planner.profile import Link

_LEAST = 0.8  # of the expected rate that an exchange must reach; headers and starts take a part


def examine_link(expected: str | None, as_json: bool) -> int:
    """Measure the link of all ranks and print it on rank 0; 1 if it is broken."""
    import torch.distributed as dist

    from thinwire.planner.describe import parse_rate
    from thinwire.planner.link import measure_link
    from thinwire.worlds.distributed import Distributed

    rate = None if expected is None else parse_rate(expected)
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        raise WorldError("a link joins at least 2 ranks; start: torchrun --nnodes ... -m thinwire doctor --link.")
    dist.init_process_group("gloo")
    world = Distributed()
    link = measure_link(world)
    world.close_connections()
    dist.barrier()
    rank = dist.get_rank()
    dist.destroy_process_group()
    faults = faults_of(link, rate)
    if rank == 0:
        facts = {"bits_per_second": link.bits_per_second, "received_mbit": link.received_mbit, "faults": faults}
        typer.echo(json.dumps(facts) if as_json else "\n".join([*link_lines(link), *faults]))
    return 1 if faults else 0


def faults_of(link: "Link", expected: float | None) -> list[str]:
    """What is wrong: single ranks, or all of them."""
    faults = link.faults()
    if expected is not None and link.bits_per_second < _LEAST * expected:
        faults.append(
            f"exchanges reach {link.bits_per_second / 1e6:.0f} Mbit/s where {expected / 1e6:.0f} are expected: look at"
            " the interface that GLOO_SOCKET_IFNAME names, and at other traffic"
        )
    return faults


def link_lines(link: "Link") -> list[str]:
    """The figures as text."""
    lines = [f"{link.ranks} ranks; exchanges of long messages reach {link.bits_per_second / 1e6:.0f} Mbit/s"]
    for kind, what in (("reduce", "all-reduce"), ("gather", "short messages"), ("exchange", "long messages")):
        shown = ", ".join(f"{p.sent:,} bytes {p.seconds * 1e3:.2f} ms" for p in link.points[kind])
        lines.append(f"{what}: {shown}")
    rates = ", ".join(f"rank {rank} {rate:.0f}" for rank, rate in enumerate(link.received_mbit))
    return [*lines, f"received from one peer, Mbit/s: {rates}"]
