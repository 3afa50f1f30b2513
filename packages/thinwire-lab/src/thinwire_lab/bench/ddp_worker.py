"""Steps of training on every host of a lab: `python -m thinwire_lab.bench.ddp_worker`, started by `bench.ddp`.

All contenders are there at the same time, each with a copy of the model, and take turns of a few steps, so that what
disturbs the machine meets all alike. A step lasts until the slowest rank has ended it.
"""

import copy
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from thinwire.core.profiling import span
from thinwire_lab.bench.collectives import largest, turns_in_span
from thinwire_lab.bench.launching import common_moment, report, work
from thinwire_lab.compare.contenders import parse_contender
from thinwire_lab.compare.traffic import Traffic
from thinwire_lab.recipes import build_model
from thinwire_lab.recipes.models import reads_text
from thinwire_lab.recipes.place import Place
from thinwire_lab.recipes.recipe import loss_of

TIMES = {"wait": "exposed", "encode": "encode", "communicate": "communicate", "decode": "decode"}  # as handles say
SETTLED_AT_ONCE = ("ddp", "headroom", "none", "fp16", "bf16", "torch-fp16", "torch-bf16")
BATCHES = 4
SPAN = 3.0  # seconds that a quick contender's turn may take, in which it makes more steps than were asked for


class Runner:
    """One contender's copy of the model, and what its steps took."""

    def __init__(self, text: str, model: nn.Module) -> None:
        self.text, contender = text, parse_contender(text)
        self.parallel = DistributedDataParallel(copy.deepcopy(model), **contender.ddp_options)
        self.compressor = contender.attach(self.parallel, seed=0)
        self.optimizer = torch.optim.SGD(self.parallel.parameters(), lr=1e-3)
        self.step = 0
        self.pace = 0.0  # seconds of the last step before the clock runs, on the slowest rank
        self.seconds: list[float] = []
        self.told: dict[str, list[float]] = {}
        self.sent: list[float] = []

    @property
    def warmup(self) -> int:
        """DDP sorts its buckets anew in the second step; PowerSGD and learnt bases begin later."""
        return 2 if self.text in SETTLED_AT_ONCE else 5

    def settle(self, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Steps that do not count yet."""
        took = [self.train(batches) for _ in range(self.warmup)]
        (self.pace,) = largest(took[-1:])

    def train(self, batches: Sequence[tuple[Tensor, Tensor]], together: bool = True) -> float:
        """One step, from a moment at which all ranks begin, or at once; its seconds on this rank."""
        x, y = batches[self.step % len(batches)]
        began = common_moment() if together else time.perf_counter()
        with span("step"):
            with span("forward"):
                loss = loss_of(self.parallel, x, y)
            with span("backward"):
                loss.backward()  # type: ignore[no-untyped-call]
            with span("optimiser"):
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)  # gradients of contenders that wait their turn take room
        self.step += 1
        return time.perf_counter() - began

    def turn(self, batches: Sequence[tuple[Tensor, Tensor]], steps: int) -> None:
        traffic = Traffic()
        for _ in range(steps):
            self.seconds.append(self.train(batches))
            metrics = self.compressor.metrics()
            for what, told in TIMES.items():
                if (value := metrics.get(f"{told}_seconds")) is not None:
                    self.told.setdefault(what, []).append(value)
        total = traffic.total()
        if total is not None:
            self.sent.append(total / steps)

    def figures(self) -> dict[str, Any]:
        """Medians over steps, of the slowest rank."""
        return {
            "contender": self.text,
            "seconds": slowest(self.seconds),
            "bytes_sent": round(statistics.median(self.sent)) if self.sent else None,
            **{f"{what}_seconds": slowest(self.told[what]) if what in self.told else None for what in TIMES},
        }


def slowest(seconds: Sequence[float]) -> float:
    """The median over steps of the time that the slowest rank took; every rank must call it."""
    return float(statistics.median(largest(seconds)))


def made_up_batches(job: dict[str, Any], rank: int) -> list[tuple[Tensor, Tensor]]:
    """Images of ten classes, each with a pattern of its own below noise; or random tokens."""
    random, batch = torch.Generator().manual_seed(rank), job["batch"]
    if reads_text(job["model"]):
        texts = [torch.randint(256, (batch, job["context"] + 1), generator=random) for _ in range(BATCHES)]
        return [(text[:, :-1], text[:, 1:]) for text in texts]
    patterns = torch.randn(10, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    labels = [torch.randint(10, (batch,), generator=random) for _ in range(BATCHES)]
    return [(patterns[y] + torch.randn(batch, 1, 28, 28, generator=random), y) for y in labels]


def fresh_model(job: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    options = {"context": job["context"]} if reads_text(job["model"]) else {}
    return build_model(job["model"], **options, **job["model_options"])


def measure(job: dict[str, Any], place: Place) -> dict[str, Any]:
    model, batches = fresh_model(job), made_up_batches(job, place.rank)
    parameters = sum(p.numel() for p in model.parameters())
    if job["trace"] is not None:
        trace(job["contenders"][0], model, batches, job["trace"] if place.rank == 0 else None)
        return {"parameters": parameters}
    runners = [Runner(text, model) for text in job["contenders"]]
    for runner in runners:
        report(place, f"{runner.text}: warm-up")
        runner.settle(batches)
    for done in range(0, job["steps"], job["turn"]):
        some = min(job["turn"], job["steps"] - done)
        for runner in runners:
            report(place, f"step {done + 1} of {job['steps']}: {runner.text}")
            runner.turn(batches, turns_in_span(some, runner.pace, SPAN))
    rows = [runner.figures() for runner in runners]
    _close(runners)
    return {"parameters": parameters, "rows": rows}


def trace(text: str, model: nn.Module, batches: Sequence[tuple[Tensor, Tensor]], output: str | None) -> None:
    """Write what torch.profiler records of one step on this rank, once the contender has settled; None: record nothing.

    Only rank 0 records: ranks that share processors would delay each other.
    """
    runner = Runner(text, model)
    runner.settle(batches)
    if output is None:
        runner.train(batches)
    else:
        threads = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)  # lanes are threads
        with profile(activities=[ProfilerActivity.CPU], experimental_config=threads) as profiler:
            runner.train(batches)
            profiler.add_metadata("codec", text)
        profiler.export_chrome_trace(output)
    _close([runner])


def _close(runners: Sequence[Runner]) -> None:
    closing: list[Callable[[], None]] = [runner.compressor.close for runner in runners]
    for close in closing:
        close()


if __name__ == "__main__":
    work(sys.argv[1:], measure)
