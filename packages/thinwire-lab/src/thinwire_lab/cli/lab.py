"""`thinwire run` and `thinwire lab`: scripts on a cluster of thin links on this machine."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from thinwire.cli.unknown import unknown_option

HostsOption = Annotated[int, typer.Option(help="Number of hosts, each in a network namespace of its own.")]
LinkOption = Annotated[
    str,
    typer.Option(
        help="Rate of every link in both directions (200mbit, 1gbit), one for each host (1gbit,1gbit,100mbit,1gbit),"
        " or none for plain loopback."
    ),
]
LatencyOption = Annotated[str, typer.Option(help="Time from one host to another (5ms); a round trip takes twice that.")]
ProcsOption = Annotated[int, typer.Option("--procs-per-host", help="Ranks on each host.")]

lab_app = typer.Typer(help="The links of the lab: test them, clean up.", no_args_is_help=True)


def run(
    ctx: typer.Context,
    script: Annotated[list[str], typer.Argument(help="Your script and its arguments, or -m and a module.")],
    hosts: HostsOption = 4,
    link: LinkOption = "200mbit",
    procs_per_host: ProcsOption = 1,
    latency: LatencyOption = "0ms",
) -> None:
    """Run a training script, unchanged, under torchrun on hosts joined by thin links.

    Says first, on standard error, what is made and what each host runs.
    The exit code is the script's. Nothing is left behind, however it ends.

    Examples:

      thinwire run --hosts 4 --link 200mbit -- train.py --epochs 1

      thinwire run --hosts 2 --link 1gbit -- -m thinwire train --codec qsgd
    """
    from thinwire_lab.lab import LabError, LabSpec
    from thinwire_lab.lab import run as run_in_lab

    argv = script[1:] if script[0] == "--" else script
    if argv is script and (wrong := unknown_option(ctx, script[0])) is not None:
        raise LabError(wrong)
    spec = LabSpec(hosts=hosts, links=link, latency=latency)
    raise typer.Exit(
        run_in_lab(spec, argv, procs_per_host, tell=lambda line: typer.echo(f"thinwire: {line}", err=True))
    )


@lab_app.command("test")
def measure(
    hosts: HostsOption = 2,
    link: LinkOption = "200mbit",
    latency: LatencyOption = "0ms",
    seconds: Annotated[float, typer.Option(help="Time for each measurement.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make a lab and measure what its links carry, each in both directions.

    Example:

      thinwire lab test --hosts 2 --link 100mbit
    """
    from rich.console import Console
    from rich.table import Table

    from thinwire_lab.lab import LabSpec, measure_links, show_rate

    speeds = measure_links(LabSpec(hosts=hosts, links=link, latency=latency), seconds)
    if as_json:
        typer.echo(json.dumps([asdict(speed) for speed in speeds]))
        return
    table = Table(caption="TCP payload; a full link carries about 95 % of its rate", caption_justify="left")
    for column in ("host", "asked for", "out, Mbit/s", "in, Mbit/s"):
        table.add_column(column, justify="right")
    for speed in speeds:
        table.add_row(str(speed.host), show_rate(speed.rate), f"{speed.sent_mbit:.1f}", f"{speed.received_mbit:.1f}")
    Console().print(table)


@lab_app.command("clean")
def clean() -> None:
    """End what labs of launchers that were killed left running.

    Every new lab does the same; labs that are in use are never touched.

    Example:

      thinwire lab clean
    """
    from thinwire_lab.lab import remove_leftovers

    ended = remove_leftovers()
    typer.echo(f"ended {ended} leftover process{'' if ended == 1 else 'es'}" if ended else "nothing was left over")
