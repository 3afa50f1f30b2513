"""The records of a comparison: one JSON object a line, six kinds, in the order in which things happened.

    {"kind": "run", "run": "qsgd #0", ...}        a training run begins: what, where, with which versions
    {"kind": "step", "run": "qsgd #0", ...}       one step of training (or the last of several, see `log_every`)
    {"kind": "eval", "run": "qsgd #0", ...}       loss and accuracy on the test part; always one behind the last step
    {"kind": "decision", "run": "auto #0", ...}   what the contender auto chose after a step, and why
    {"kind": "layers", "run": "qsgd #0", ...}     once a run: what every parameter's gradient went through
    {"kind": "summary", "run": "qsgd #0", ...}    the run has ended; `error` tells that it failed

`run` names the run that a record belongs to: the label and the seed. Fields are those of the dataclasses below, and
all of them are present in every line; null stands for what is not known or not a finite number. Seconds are seconds of
training (evaluation and checkpoints stop the clock), bytes are what one rank sent over TCP, payload without headers.

A run that was begun twice (a comparison that was stopped and resumed) counts from its last beginning.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from thinwire_lab.report import jsonl
from thinwire_lab.report.jsonl import RecordError as RecordError
from thinwire_lab.report.jsonl import build, end_last_line, line_error, read_lines

WRITER = "thinwire compare"


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training run begins."""

    kind: ClassVar[str] = "run"

    run: str
    label: str  # short and unique among the contenders: what tables and legends show, e.g. "qsgd" or "torch-fp16"
    codec: str  # the whole chain in its one text form, e.g. "qsgd(bits=4)"; for baselines the label
    baseline: bool  # one of PyTorch's own ways (ddp, torch-fp16, ...), or headroom, rather than a chain of thinwire
    seed: int
    hosts: int
    procs_per_host: int
    ranks: int
    link: str  # as it was asked for: "200mbit", "1gbit,100mbit", or "none" for plain loopback
    latency: str
    recipe: dict[str, Any]  # {"name": "fashion-vgg", "model": "vgg", "batch": 16, "steps": 400, "lr": ..., ...}
    parameters: int  # trained numbers of the model
    target_accuracy: float | None
    command: str  # that repeats the comparison
    versions: dict[str, str]  # thinwire, torch, python
    machine: dict[str, Any]  # system, processor, cores, memory_bytes, native (compiled kernels are there)
    started: str  # ISO 8601 with time zone
    mode: str = "steps"  # what is equal for all runs of the comparison: "steps", or "seconds" of training
    seconds: float | None = None  # of training, after which the run ends; null in the mode "steps"
    guess_accuracy: float | None = None  # of always giving the most frequent answer
    momentum: str = "optimiser"  # or "chain", if the codec has it; the optimiser then has none for these parameters


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of training; where a step's time went is known for thinwire's own chains, in part for others."""

    kind: ClassVar[str] = "step"

    run: str
    step: int  # steps done, so the first is 1
    loss: float | None  # of the training batches, mean over the ranks
    seconds: float  # of training since the start
    step_seconds: float  # this step took (mean since the last record)
    bytes_sent: int | None  # in this step, by one rank
    bytes_total: int | None  # since the start, by one rank
    encode_seconds: float | None
    communicate_seconds: float | None  # inside collectives, also while the backward pass goes on
    decode_seconds: float | None
    exposed_seconds: float | None  # between the last gradient of the backward pass and the last averaged one
    relative_error: float | None  # |given - delivered| / |given|, where it was measured in this step


@dataclass(frozen=True, kw_only=True)
class Eval:
    """Loss and accuracy on the test part."""

    kind: ClassVar[str] = "eval"

    run: str
    step: int
    seconds: float
    bytes_total: int | None
    accuracy: float  # share of right predictions, 0 to 1
    loss: float | None


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What the contender `auto` has decided."""

    kind: ClassVar[str] = "decision"

    run: str
    step: int  # steps that had ended
    plan: str  # in force from then on
    reason: str
    plain_seconds: float  # a step without compression, measured
    network_share: float  # of the plain step, predicted
    predicted: dict[str, float]  # seconds of a step with each plan that was compared
    measured: dict[str, float]  # seconds of a step with each plan that was tried


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One parameter's gradient."""

    name: str
    shape: list[int]
    numel: int
    codec: str  # its own: "none" where the plan leaves a parameter alone
    why: str  # the rule that decided it
    wire_bytes: int  # that a rank sends in a step, by calculation
    wire_ratio: float  # bytes of an fp32 all-reduce / wire_bytes
    relative_error: float | None  # as last measured


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Every trained parameter of the model, in the model's order; empty for baselines."""

    kind: ClassVar[str] = "layers"

    run: str
    layers: list[Layer]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The end of a run, good or bad. Times and bytes of a step are medians over the steps after the first few."""

    kind: ClassVar[str] = "summary"

    run: str
    label: str
    seed: int
    error: str | None = None  # one line; then everything below may be null
    steps: int = 0
    seconds: float | None = None  # of training
    step_seconds: float | None = None
    samples_per_second: float | None = None  # all ranks together
    bytes_per_step: float | None = None  # mean over the ranks
    wire_ratio: float | None = None  # bytes of an fp32 ring all-reduce of all parameters / bytes_per_step
    compute_seconds: float | None = None  # step_seconds - exposed_seconds
    encode_seconds: float | None = None
    communicate_seconds: float | None = None
    decode_seconds: float | None = None
    exposed_seconds: float | None = None
    relative_error: float | None = None
    train_loss: float | None = None  # mean of the last tenth of the records
    test_loss: float | None = None
    accuracy: float | None = None  # at the end, 0 to 1
    target_accuracy: float | None = None
    seconds_to_target: float | None = None  # of training until an evaluation first reached the target; null: never


Record = Run | Step | Eval | Decision | Layers | Summary
KINDS: Mapping[str, type[Record]] = {kind.kind: kind for kind in (Run, Step, Eval, Decision, Layers, Summary)}


@dataclass
class RunLog:
    """Everything about one run."""

    run: Run
    steps: list[Step] = field(default_factory=list)
    evals: list[Eval] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    summary: Summary | None = None  # None: still running, or stopped half-way

    def add(self, record: Record) -> None:
        match record:
            case Step():
                self.steps.append(record)
            case Eval():
                self.evals.append(record)
            case Decision():
                self.decisions.append(record)
            case Layers():
                self.layers = list(record.layers)
            case Summary():
                self.summary = record
            case Run():
                raise AssertionError("a run begins a log of its own")


def to_line(record: Record) -> str:
    """The record as one line of JSON."""
    return jsonl.to_line({"kind": record.kind, **asdict(record)})


def from_dict(given: Any) -> Record:
    """A record from what JSON gave; RecordError says which field is missing or of the wrong type."""
    if not isinstance(given, dict) or str(given.get("kind")) not in KINDS:
        found = repr(given.get("kind")) if isinstance(given, dict) else type(given).__name__
        raise RecordError(f"a record's kind is one of {', '.join(KINDS)}, not {found}")
    record: Record = build(KINDS[given["kind"]], given)
    return record


def read_results(path: str | Path) -> list[RunLog]:
    """The runs of a file of results, in the order in which they were begun.

    A last line that was cut short is left out; anything else that is not a record is an error with its line number.
    """
    logs: dict[str, RunLog] = {}
    for number, given in read_lines(path, WRITER):
        try:
            record = from_dict(given)
        except RecordError as wrong:
            raise line_error(path, number, wrong, WRITER) from None
        if isinstance(record, Run):
            logs.pop(record.run, None)
            logs[record.run] = RunLog(record)
        elif record.run in logs:
            logs[record.run].add(record)
        else:
            reason = f"a {record.kind} of the run {record.run!r}, which never began"
            raise line_error(path, number, reason, WRITER)
    return list(logs.values())


class Writer:
    """Appends records to a file, each complete on the disk's side before the next begins."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        end_last_line(self.path)
        self._file = self.path.open("a", encoding="utf-8")

    def write(self, record: Record) -> None:
        self._file.write(to_line(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
