"""Workers of a benchmark: a module of this package on every host of a lab, whose first rank hands back one value."""

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from thinwire_lab.bench.results import BenchError
from thinwire_lab.lab import Lab, launch
from thinwire_lab.recipes import joined_world
from thinwire_lab.recipes.place import Place

MARK = "@progress "
PATIENCE = timedelta(minutes=5)  # with a peer that does not answer
PAUSE = 0.03  # seconds in which all ranks hear when they begin


def launched(
    module: str, job: Mapping[str, Any], hosts: int, link: str, tell: Callable[[str], None] | None = None
) -> Any:
    """Run a worker module on hosts behind links of this rate; the value that its rank 0 returns.

    `tell` hears what the workers report on their way.
    """
    said: list[str] = []

    def hear(line: str) -> None:
        _, mark, news = line.partition(MARK)
        if mark and tell is not None:
            tell(news)
        elif not mark:
            said.append(line)

    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "value.json"
        with Lab(hosts, link) as lab:
            code = launch(lab, ["-m", module, str(output), json.dumps(job)], echo=hear)
        if code or not output.exists():
            raise BenchError(f"the workers of {module} ended with code {code}: {_reason(said)}")
        return json.loads(output.read_text(encoding="utf-8"))


def _reason(said: list[str]) -> str:
    """The first line that names an error, else the last one of a rank, else the last one of torchrun."""
    errors = [line for line in said if "Error" in line]
    ranks = [line for line in said if " rank" in line.partition("]")[0]]
    return errors[0] if errors else (ranks or said or ["they said nothing"])[-1]


@contextmanager
def joined() -> Iterator[Place]:
    """A rank of a Gloo group, computing on one thread: ranks share the processors already."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=PATIENCE)
    with joined_world("cpu") as place:
        yield place
        dist.barrier()
    dist.destroy_process_group()


def work(arguments: list[str], measure: Callable[[dict[str, Any], Place], Any]) -> None:
    """The main function of a worker module: measure, and let rank 0 hand back the value."""
    output, job = Path(arguments[0]), json.loads(arguments[1])
    with joined() as place:
        value = measure(job, place)
        if place.rank == 0:
            output.write_text(json.dumps(value), encoding="utf-8")


def report(place: Place, news: str) -> None:
    """Tell the launcher how far the workers are."""
    if place.rank == 0:
        print(MARK + news, flush=True)


def common_moment() -> float:
    """A moment at which all ranks go on; it is the same one, as they share the machine's clock.

    From a barrier they would go on one after the other: where they share cores, the last ones milliseconds late, which
    the first ones' times would count.
    """
    dist.barrier()
    moment = torch.tensor([time.perf_counter() + PAUSE], dtype=torch.float64)
    dist.broadcast(moment, 0)
    time.sleep(max(0.0, float(moment) - time.perf_counter()))
    return float(moment)
