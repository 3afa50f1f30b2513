"""Steps of DDP over thin links: thinwire's codecs, PyTorch's hooks, plain DDP, and no communication at all."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from rich.table import Table

from thinwire_lab.bench.collectives import GRADIVEQ
from thinwire_lab.bench.launching import launched
from thinwire_lab.bench.results import BenchError, Target, at_most, beside_target, columns
from thinwire_lab.compare.contenders import parse_contender, parse_contenders
from thinwire_lab.recipes import build_model

WORKER = "thinwire_lab.bench.ddp_worker"
PLAIN, HEADROOM = "ddp", "headroom"
LINKS = ("100mbit", "1gbit", "none")
CODECS = (
    *("none", "fp16", "qsgd", "nuqsgd", GRADIVEQ, "fftsgd", "iwp"),
    *("powersgd(rank=1)", "powersgd(rank=2)", "powersgd(rank=4)"),
)
HOOKS = ("torch-fp16", "torch-powersgd(rank=1)", "torch-powersgd(rank=2)", "torch-powersgd(rank=4)")
FEW = (
    "none",
    "qsgd",
    "nuqsgd",
    GRADIVEQ,
    "powersgd(rank=2)",
    "torch-fp16",
    "torch-powersgd(rank=2)",
)  # for a short run
STEP_TARGETS = {("none", "none"): 1.03}  # link, contender: step time over that of plain DDP
EXPOSED_TARGETS = {("1gbit", "qsgd"): 0.25}  # of plain DDP's exposed communication
THIN = ("100mbit", "1gbit")  # where some codec must beat every hook of PyTorch
JUDGED_RANKS = 4


@dataclass(frozen=True)
class Workload:
    """A model and the batch of each rank; computation is kept small, as these hosts share one machine."""

    model: str
    batch: int
    context: int = 64  # tokens, for a model that reads text
    options: Mapping[str, object] = field(default_factory=dict)


WORKLOADS = {"vgg": Workload("vgg", 4), "resnet": Workload("resnet-wide", 2), "gpt": Workload("gpt", 1)}


@dataclass(frozen=True)
class DdpRow:
    """One contender. What it exposes is all that its step takes beyond that of headroom, for plain DDP and every other
    alike; `wait_seconds` is how long it waited behind backward, if it tells: there, ranks that end their backward
    passes early wait for the last one too."""

    kind: ClassVar[str] = "ddp"

    model: str
    parameters: int
    link: str
    ranks: int
    batch: int
    contender: str
    seconds: float
    step_ratio: float
    exposed_seconds: float
    exposed_share: float | None  # of plain DDP's
    wait_seconds: float | None
    encode_seconds: float | None
    communicate_seconds: float | None
    decode_seconds: float | None
    bytes_sent: int | None
    step_target: Target | None
    exposed_target: Target | None

    @property
    def title(self) -> str:
        return f"{self.contender}, {self.model}, {self.link}"

    def judged(self) -> list[tuple[str, float | None, Target | None]]:
        return [
            ("step / plain DDP's", self.step_ratio, self.step_target),
            ("exposed share", self.exposed_share, self.exposed_target),
        ]


@dataclass(frozen=True)
class DdpVerdict:
    """The fastest codec of thinwire against the fastest hook of PyTorch."""

    kind: ClassVar[str] = "ddp-verdict"

    model: str
    link: str
    codec: str
    hook: str
    step_ratio: float
    target: Target | None

    @property
    def title(self) -> str:
        return f"{self.codec} against {self.hook}, {self.model}, {self.link}"

    def judged(self) -> list[tuple[str, float | None, Target | None]]:
        return [("step / the hook's", self.step_ratio, self.target)]


def bench_ddp(
    name: str,
    workload: Workload,
    link: str,
    hosts: int = 4,
    contenders: Sequence[str] = (*CODECS, *HOOKS),
    steps: int = 12,
    turn: int = 3,
    tell: Callable[[str], None] | None = None,
) -> list[DdpRow | DdpVerdict]:
    """All contenders in one launch; plain DDP and headroom are always among them."""
    if steps < 1:
        raise BenchError(f"a benchmark needs at least 1 step, not {steps}.")
    everyone = [c.text for c in parse_contenders([PLAIN, HEADROOM, *contenders])]
    job = _job(workload, everyone) | {"steps": steps, "turn": turn, "trace": None}
    found = launched(WORKER, job, _checked(hosts), link, tell)
    about = {"model": name, "parameters": found["parameters"], "link": link, "ranks": hosts, "batch": workload.batch}
    rows = ddp_rows(found["rows"], about, judge=hosts == JUDGED_RANKS)
    return [*rows, *verdict(rows, judge=hosts == JUDGED_RANKS and link in THIN)]


def _job(workload: Workload, contenders: Sequence[str]) -> dict[str, Any]:
    """What the workers are told; a model that cannot be built is refused before any host is started."""
    if workload.batch < 1:
        raise BenchError(f"a batch has at least 1 example, not {workload.batch}.")
    build_model(workload.model, **workload.options)
    return {
        "model": workload.model,
        "model_options": dict(workload.options),
        "batch": workload.batch,
        "context": workload.context,
        "contenders": list(contenders),
    }


def _checked(hosts: int) -> int:
    if hosts < 2:
        raise BenchError(f"gradients are averaged by at least 2 hosts, not {hosts}; give --hosts 2 or more.")
    return hosts


def ddp_rows(found: Sequence[Mapping[str, Any]], about: Mapping[str, Any], judge: bool) -> list[DdpRow]:
    """Figures of the workers, set against those of plain DDP and headroom among them."""
    seconds = {row["contender"]: row["seconds"] for row in found}
    plain, exposed = seconds[PLAIN], seconds[PLAIN] - seconds[HEADROOM]
    rows = []
    for row in found:
        key, beyond = (about["link"], row["contender"]), row["seconds"] - seconds[HEADROOM]
        figures = {
            **row,
            "step_ratio": row["seconds"] / plain,
            "exposed_seconds": beyond,
            "exposed_share": beyond / exposed if exposed > 0 else None,
            "step_target": at_most(STEP_TARGETS[key]) if judge and key in STEP_TARGETS else None,
            "exposed_target": at_most(EXPOSED_TARGETS[key]) if judge and key in EXPOSED_TARGETS else None,
        }
        rows.append(DdpRow(**about, **figures))
    return rows


def verdict(rows: Sequence[DdpRow], judge: bool) -> list[DdpVerdict]:
    """Whether some codec beats every hook; empty if one of the two kinds is not there."""
    hooks = [row for row in rows if row.contender.startswith("torch-")]
    codecs = [row for row in rows if row not in hooks and row.contender not in (PLAIN, HEADROOM, "none")]
    if not hooks or not codecs:
        return []
    codec, hook = (min(some, key=lambda row: row.seconds) for some in (codecs, hooks))
    ratio = codec.seconds / hook.seconds
    return [
        DdpVerdict(codec.model, codec.link, codec.contender, hook.contender, ratio, at_most(1.0) if judge else None)
    ]


def ddp_table(rows: Sequence[DdpRow | DdpVerdict]) -> Table:
    """One model on one link, for the terminal; a target that is missed is red."""
    steps = [row for row in rows if isinstance(row, DdpRow)]
    first = steps[0]
    title = (
        f"{first.model}, {first.parameters:,} parameters, batch {first.batch} on each of {first.ranks} ranks,"
        f" link {first.link}: median step"
    )
    names = ("contender", "step ms", "/ plain DDP", "exposed ms", "/ plain's", "wait ms")
    table = columns(Table(title=title, title_justify="left"), (*names, "encode ms", "wire ms", "decode ms", "MB sent"))
    for row in sorted(steps, key=lambda row: row.seconds):
        told = (row.wait_seconds, row.encode_seconds, row.communicate_seconds, row.decode_seconds)
        table.add_row(
            row.contender,
            _ms(row.seconds),
            beside_target(row.step_ratio, row.step_target),
            _ms(row.exposed_seconds),
            "" if row.exposed_share is None else beside_target(row.exposed_share, row.exposed_target),
            *(_ms(value) for value in told),
            "" if row.bytes_sent is None else f"{row.bytes_sent / 1e6:.2f}",
        )
    for end in (row for row in rows if isinstance(row, DdpVerdict)):
        table.caption = f"step of {end.codec} / {end.hook}: {beside_target(end.step_ratio, end.target)}"
    return table


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.1f}"


def trace_ddp(workload: Workload, link: str, hosts: int, contender: str, output: Path) -> None:
    """Write a Chrome trace of one step with this contender, as torch.profiler records it on rank 0."""
    job = _job(workload, [parse_contender(contender).text])
    output = output.resolve()
    if not output.parent.is_dir():
        raise BenchError(f"a trace needs a folder that exists, and {output.parent} does not; make it first.")
    launched(WORKER, job | {"trace": str(output)}, _checked(hosts), link)
