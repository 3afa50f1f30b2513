"""`thinwire bench`: how fast it is here, beside what it should reach."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thinwire_lab.cli.lab import HostsOption

if TYPE_CHECKING:
    from rich.table import Table

    from thinwire_lab.bench.ddp import Workload
    from thinwire_lab.bench.results import Row

bench_app = typer.Typer(no_args_is_help=True)

LinksOption = Annotated[
    str | None, typer.Option("--links", "--link", help="Rates of links, one after the other: 1gbit,100mbit,none.")
]
CodecsOption = Annotated[
    str | None, typer.Option(help="Codecs, separated by commas or semicolons outside of parentheses.")
]
OnlyPossibleOption = Annotated[
    bool, typer.Option("--or-loopback", help="Where links cannot be shaped, say so and leave the thin ones out.")
]
TurnsOption = Annotated[int, typer.Option(help="Turns of measuring.", min=1)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the records as JSONL, and write no file.")]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="File for the records (default: a dated one in benchmarks/results, or else here)."
    ),
]


@bench_app.callback()
def bench() -> None:
    """Measure how fast thinwire is on this machine, beside what it should reach.

    Every figure is a ratio to a baseline of the same run; a target that is missed is red. The records go to a dated
    JSONL file that begins with the machine, the versions and the command.
    """


class Findings:
    """What one command measures: tables and records appear as soon as they are there, a summary at the end."""

    def __init__(self, name: str, as_json: bool, output: Path | None) -> None:
        from rich.console import Console

        from thinwire_lab.bench.results import heading_line, results_path

        self.as_json = as_json
        self.rows: list[Row] = []
        self.path = output or (None if as_json else results_path(name))
        if self.path is not None:
            self.path.write_text("", encoding="utf-8")
        self._tell([heading_line(name)])
        terminal = Console()
        self.console = terminal if terminal.is_terminal else Console(width=170)
        self.errors = Console(stderr=True)

    @contextmanager
    def progress(self, what: str) -> Iterator[Callable[[str], None]]:
        """A line that says what is being measured, on a terminal."""
        with self.errors.status(what) as status:
            yield lambda news: status.update(f"{what}: {news}")

    def add(self, rows: "Sequence[Row]", table: "Table") -> None:
        from thinwire_lab.bench.results import row_lines

        self.rows += rows
        self._tell(row_lines(rows))
        if not self.as_json:
            self.console.print(table)

    def _tell(self, lines: Sequence[str]) -> None:
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.writelines(line + "\n" for line in lines)
        if self.as_json:
            typer.echo("\n".join(lines))

    def close(self) -> None:
        from thinwire_lab.bench.results import missed

        if self.as_json:
            return
        failed, targets = missed(self.rows)
        for what in failed:
            self.console.print(f"[bold red]missed[/]: {what}")
        if targets:
            self.console.print(f"{targets - len(failed)} of {targets} targets met")
        self.console.print(f"the records are in {self.path}", soft_wrap=True)


@bench_app.command()
def kernels(
    only: Annotated[str | None, typer.Option(help="Only codecs whose text contains this.")] = None,
    sizes: Annotated[str, typer.Option(help="Bytes of fp32 numbers; targets are for 64m.")] = "4k,256k,64m",
    threads: Annotated[str, typer.Option(help="Threads of torch; targets are for 1.")] = "1,2",
    turns: TurnsOption = 7,
    as_json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Encoding and decoding, relative to Tensor.copy_, and what others offer for the same purpose.

    Example:

      thinwire bench kernels --only qsgd --sizes 64m --threads 1
    """
    from thinwire_lab.bench.kernels import bench_kernels, kernel_table
    from thinwire_lab.bench.results import parse_counts, parse_sizes

    findings = Findings("kernels", as_json, output)
    for count in parse_counts(threads, "threads"):
        for size in parse_sizes(sizes):
            with findings.progress("kernels") as tell:
                rows = bench_kernels(size // 4, count, only, turns, tell)
            findings.add(rows, kernel_table(rows))
    findings.close()


@bench_app.command()
def collectives(
    links: LinksOption = None,
    hosts: HostsOption = 4,
    codecs: CodecsOption = None,
    size: Annotated[str, typer.Option(help="Bytes that are averaged; targets are for 25m.")] = "25m",
    turns: TurnsOption = 7,
    or_loopback: OnlyPossibleOption = False,
    as_json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Averages over thin links, against dividing and all_reduce in fp32, with the wire's limit beside them.

    Example:

      thinwire bench collectives --links 1gbit,none --codecs "none; qsgd(bits=4)"
    """
    from thinwire_lab.bench.collectives import CODECS, LINKS, bench_collectives, collective_table
    from thinwire_lab.bench.results import parse_sizes
    from thinwire_lab.compare.contenders import split_list

    findings = Findings("collectives", as_json, output)
    chosen, numel = split_list(codecs) if codecs else CODECS, parse_sizes(size)[0] // 4
    for link in _links(links, LINKS, or_loopback):
        with findings.progress(f"averages, link {link}") as tell:
            rows = bench_collectives(link, hosts, chosen, turns, numel=numel, tell=tell)
        findings.add(rows, collective_table(rows))
    findings.close()


def _links(text: str | None, usual: Sequence[str], or_loopback: bool) -> list[str]:
    """The links that are asked for; where none can be shaped, those that need no shaping, if that is wished."""
    from thinwire_lab.bench.results import spread
    from thinwire_lab.lab import why_no_thin_links
    from thinwire_lab.lab.rates import parse_rate

    chosen = spread(text) if text else list(usual)
    thin = [link for link in chosen if parse_rate(link) is not None]
    if or_loopback and thin and (reason := why_no_thin_links()) is not None:
        typer.echo(f"Links cannot be shaped here, so {', '.join(thin)} are left out: {reason}.", err=True)
        return [link for link in chosen if link not in thin]
    return chosen


@bench_app.command()
def ddp(
    model: Annotated[str, typer.Option(help="vgg, resnet or gpt; several with commas.")] = "vgg",
    links: LinksOption = None,
    hosts: HostsOption = 4,
    codecs: CodecsOption = None,
    steps: Annotated[int, typer.Option(help="Steps of each contender; quick ones make up to four times as many.")] = 12,
    batch: Annotated[int | None, typer.Option(help="Examples in a batch, on each rank.")] = None,
    width: Annotated[int | None, typer.Option(help="Channels or units: the size of the model.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a Chrome trace of one step with the first codec, and measure nothing.")
    ] = None,
    or_loopback: OnlyPossibleOption = False,
    as_json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Steps of training: codecs and PyTorch's hooks against plain DDP and against no communication at all.

    Codecs may be PyTorch's ways too: ddp, torch-fp16, torch-powersgd(rank=2). A trace opens in Perfetto
    (ui.perfetto.dev) or chrome://tracing.

    Examples:

      thinwire bench ddp --model gpt --links 1gbit --codecs "qsgd, torch-powersgd(rank=2)"

      thinwire bench ddp --links 1gbit --codecs qsgd --trace trace.json
    """
    from thinwire_lab.bench.ddp import CODECS, HOOKS, LINKS, bench_ddp, ddp_table, trace_ddp
    from thinwire_lab.compare.contenders import split_list

    chosen = split_list(codecs) if codecs else [*CODECS, *HOOKS]
    workloads = _workloads(model, batch, width)
    places = _links(links, ("1gbit",) if trace else LINKS, or_loopback)
    if trace is not None:
        name, workload = next(iter(workloads.items()))
        codec = chosen[0] if codecs else "qsgd"
        trace_ddp(workload, places[0], hosts, codec, trace)
        typer.echo(f"A step of {name} with {codec}, as rank 0 saw it, is in {trace}; open it at ui.perfetto.dev")
        return
    findings = Findings("ddp", as_json, output)
    for name, workload in workloads.items():
        for link in places:
            with findings.progress(f"{name}, link {link}") as tell:
                rows = bench_ddp(name, workload, link, hosts, chosen, steps, tell=tell)
            findings.add(rows, ddp_table(rows))
    findings.close()


def _workloads(names: str, batch: int | None, width: int | None) -> "dict[str, Workload]":
    from dataclasses import replace

    from thinwire_lab.bench.ddp import WORKLOADS
    from thinwire_lab.bench.results import BenchError, spread

    chosen = {}
    for name in spread(names):
        if name not in WORKLOADS:
            raise BenchError(f"there is no model {name!r} to benchmark; known are {', '.join(WORKLOADS)}.")
        workload = WORKLOADS[name]
        options = dict(workload.options) | ({} if width is None else {"width": width})
        chosen[name] = replace(workload, batch=workload.batch if batch is None else batch, options=options)
    return chosen


@bench_app.command()
def growth(
    sizes: Annotated[str | None, typer.Option(help="Bytes of tensors to encode (default: 4k to 256m).")] = None,
    ranks: Annotated[str, typer.Option(help="Numbers of ranks that average on loopback.")] = "2,4,8",
    memory: Annotated[str, typer.Option(help="Bytes of an average whose memory is measured; targets: 64m.")] = "64m",
    codecs: CodecsOption = None,
    as_json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Time, bytes and memory against the size of tensors and the number of ranks, as fitted exponents.

    Example:

      thinwire bench growth --sizes 256k,4m,64m --ranks 2,4 --codecs "qsgd(bits=4)"
    """
    import torch

    from thinwire_lab.bench import growth as measuring
    from thinwire_lab.bench.results import parse_counts, parse_sizes
    from thinwire_lab.compare.contenders import split_list

    chosen = split_list(codecs) if codecs else None
    counts, weight = parse_counts(ranks, "ranks"), parse_sizes(memory)[0] // 4
    findings = Findings("growth", as_json, output)
    torch.set_num_threads(1)
    with findings.progress("sizes") as tell:
        bytes_each = parse_sizes(sizes) if sizes else measuring.SIZES
        by_size = measuring.grow_sizes(chosen or measuring.ENCODED, bytes_each, tell=tell)
    findings.add(by_size, measuring.growth_table(by_size))
    with findings.progress("ranks") as tell:
        by_ranks = measuring.grow_ranks(chosen or measuring.AVERAGED, counts, tell=tell)
    findings.add(by_ranks, measuring.ranks_table(by_ranks))
    with findings.progress("memory") as tell:
        weights = measuring.weigh(chosen or measuring.WEIGHED, weight, tell)
    findings.add(weights, measuring.memory_table(weights))
    findings.close()


@bench_app.command()
def start(turns: TurnsOption = 3, as_json: JsonOption = False, output: OutputOption = None) -> None:
    """Seconds before the first step: the import beyond torch's own, and `attach` to a model of 100 layers.

    Example:

      thinwire bench start
    """
    from thinwire_lab.bench.start import bench_start, start_table

    findings = Findings("start", as_json, output)
    with findings.progress("start-up") as tell:
        rows = bench_start(turns, tell=tell)
    findings.add(rows, start_table(rows))
    findings.close()


@bench_app.command("all")
def everything() -> None:
    """All benchmarks one after the other, each with a file of its own; 20 minutes and more on 2 cores.

    The larger models meet fewer contenders; links that cannot be shaped here are left out.

    Example:

      thinwire bench all
    """
    from thinwire_lab.bench.ddp import FEW

    start()
    kernels(turns=5)
    growth()
    collectives(turns=5, or_loopback=True)
    ddp(steps=9, or_loopback=True)
    ddp(model="resnet,gpt", codecs=";".join(FEW), steps=4, or_loopback=True)
