"""`thinwire bench predictions`: what `thinwire advise` predicts, beside what then is measured."""

from typing import Annotated

import typer

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


def predictions(
    model: Annotated[str, typer.Option(help="vgg, resnet or gpt; several with commas.")] = "vgg,resnet,gpt",
    links: LinksOption = None,
    hosts: HostsOption = 4,
    codecs: CodecsOption = None,
    steps: Annotated[int, typer.Option(help="Steps that are measured with each codec.", min=2)] = 5,
    or_loopback: OnlyPossibleOption = False,
    as_json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Steps that the planner predicts beside steps that are measured: models, links and codecs.

    Each model is profiled on each link as `thinwire advise` does, then trained for some steps with each codec. The
    target is an error of 15 % in the median and of 30 % at worst.

    Example:

      thinwire bench predictions --model vgg --links 200mbit --codecs "none; qsgd(bits=4)"
    """
    from thinwire_lab.bench import predictions as measuring
    from thinwire_lab.bench.results import BenchError, spread
    from thinwire_lab.compare.contenders import split_list

    chosen, names = split_list(codecs) if codecs else list(measuring.CODECS), spread(model)
    if unknown := [name for name in names if name not in measuring.WORKLOADS]:
        known = ", ".join(measuring.WORKLOADS)
        raise BenchError(f"there is no model {unknown[0]!r} to benchmark; known are {known}.")
    findings, rows = Findings("predictions", as_json, output), list[measuring.PredictionRow]()
    for name in names:
        for link in chosen_links(links, measuring.LINKS, or_loopback):
            with findings.progress(f"{name}, link {link}") as tell:
                workload = measuring.WORKLOADS[name]
                found = measuring.bench_predictions(name, workload, link, hosts, chosen, steps, tell)
            rows += found
            findings.add(found, measuring.predictions_table(found))
    summary = measuring.summed_up(rows)
    findings.add([summary], measuring.summary_table(summary))
    findings.close()
