"""`thinwire bench`: how fast it is here, beside what it should reach."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thinwire_lab.cli.bench_options import (
    CodecsOption,
    Findings,
    JsonOption,
    LinksOption,
    OnlyPossibleOption,
    OutputOption,
    TurnsOption,
    chosen_links,
)
from thinwire_lab.cli.lab import HostsOption

if TYPE_CHECKING:
    from thinwire_lab.bench.ddp import Workload

bench_app = typer.Typer(no_args_is_help=True)


@bench_app.callback()
def bench() -> None:
    """Measure how fast thinwire is on this machine, beside what it should reach.

    Every figure is a ratio to a baseline of the same run; a target that is missed is red. The records go to a dated
    JSONL file that begins with the machine, the versions and the command.
    """


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
    for link in chosen_links(links, LINKS, or_loopback):
        with findings.progress(f"averages, link {link}") as tell:
            rows = bench_collectives(link, hosts, chosen, turns, numel=numel, tell=tell)
        findings.add(rows, collective_table(rows))
    findings.close()


@bench_app.command()
def aggregation(
    links: LinksOption = None,
    hosts: HostsOption = 4,
    size: Annotated[str, typer.Option(help="Bytes that are averaged.")] = "25m",
    turns: TurnsOption = 7,
    or_loopback: OnlyPossibleOption = False,
    as_json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """The comparison of the GradiVeQ paper: its ring, QSGD encoded at every hop, and QSGD in shards, at ratio 8.

    Example:

      thinwire bench aggregation -o docs/results/aggregation.jsonl
    """
    from thinwire_lab.bench.aggregation import LINKS, aggregation_table, bench_aggregation
    from thinwire_lab.bench.results import parse_sizes

    findings = Findings("aggregation", as_json, output)
    for link in chosen_links(links, LINKS, or_loopback):
        with findings.progress(f"aggregation, link {link}") as tell:
            rows = bench_aggregation(link, hosts, turns, parse_sizes(size)[0] // 4, tell)
        findings.add(rows, aggregation_table(rows))
    findings.close()


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
    places = chosen_links(links, ("1gbit",) if trace else LINKS, or_loopback)
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


@bench_app.command()
def outer(
    links: LinksOption = None,
    hosts: HostsOption = 4,
    contenders: Annotated[str | None, typer.Option(help="Presets of outer steps, with options.")] = None,
    width: Annotated[int, typer.Option(help="Width of the GPT: the size of the model.")] = 192,
    batch: Annotated[int, typer.Option(help="Examples in a batch, on each rank.")] = 2,
    turns: TurnsOption = 3,
    or_loopback: OnlyPossibleOption = False,
    as_json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Steps beside the exchange of outer steps, against steps without any communication.

    Example:

      thinwire bench outer --links 50mbit --contenders "sparseloco(every=20, overlap=5)"
    """
    from thinwire_lab.bench.outer import CONTENDERS, LINKS, bench_outer, outer_table
    from thinwire_lab.compare.contenders import split_list

    findings = Findings("outer", as_json, output)
    chosen = split_list(contenders) if contenders else CONTENDERS
    for link in chosen_links(links, LINKS, or_loopback):
        with findings.progress(f"link {link}") as tell:
            rows = bench_outer(link, hosts, chosen, turns, width, batch, tell)
        findings.add(rows, outer_table(rows))
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
    outer(or_loopback=True)
