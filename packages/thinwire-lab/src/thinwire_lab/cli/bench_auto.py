"""`thinwire bench auto`: what `attach(model, "auto")` chooses, beside an exhaustive search."""

from typing import Annotated

import typer

from thinwire_lab.cli.bench import bench_app
from thinwire_lab.cli.bench_options import (
    CodecsOption,
    Findings,
    JsonOption,
    LinksOption,
    OnlyPossibleOption,
    OutputOption,
    chosen_links,
)
from thinwire_lab.cli.lab import HostsOption


@bench_app.command()
def auto(
    model: Annotated[str, typer.Option(help="vgg, resnet or gpt; several with commas.")] = "vgg,resnet,gpt",
    links: LinksOption = None,
    hosts: HostsOption = 4,
    codecs: CodecsOption = None,
    or_loopback: OnlyPossibleOption = False,
    as_json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """What `attach(model, "auto")` chooses: its step beside the plain one and that of the best codec.

    Example:

      thinwire bench auto --model vgg --links 200mbit,none
    """
    from thinwire_lab.bench.auto import CODECS, LINKS, WORKLOADS, AutoRow, auto_table, bench_auto
    from thinwire_lab.bench.results import BenchError, spread
    from thinwire_lab.compare.contenders import split_list

    names = spread(model)
    if unknown := [name for name in names if name not in WORKLOADS]:
        raise BenchError(f"there is no model {unknown[0]!r} to benchmark; known are {', '.join(WORKLOADS)}.")
    findings = Findings("auto", as_json, output)
    chosen = split_list(codecs) if codecs else CODECS
    for name in names:
        rows: list[AutoRow] = []
        for link in chosen_links(links, LINKS, or_loopback):
            with findings.progress(f"{name}, link {link}") as tell:
                rows.append(bench_auto(name, link, hosts, chosen, tell))
        findings.add(rows, auto_table(rows))
    findings.close()
