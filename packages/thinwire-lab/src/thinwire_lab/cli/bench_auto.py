"""`thinwire bench auto`: what `attach(model, "auto")` chooses, beside an exhaustive search."""

from typing import Annotated

import typer

from thinwire_lab.cli.bench import bench_app
from thinwire_lab.cli.bench_options import (
    CodecsOption,
    Findings,
    JsonOption,
    LinksOption,
    MarkdownOption,
    OnlyPossibleOption,
    ResumedOption,
    chosen_cases,
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
    output: ResumedOption = None,
    markdown: MarkdownOption = None,
) -> None:
    """What `attach(model, "auto")` chooses: its step beside the plain one and that of the best plan.

    All plans that the planner can form from the codecs are searched. Plain DDP takes part twice, which shows the
    noise. With -o, a file that is there already goes on with the cases that it lacks.

    Example:

      thinwire bench auto --model vgg --links 200mbit,none -o auto.jsonl --markdown auto.md
    """
    from thinwire_lab.bench.auto import (
        CODECS,
        LINKS,
        WORKLOADS,
        AutoRow,
        auto_table,
        bench_auto,
        summary_table,
        summed_up,
    )
    from thinwire_lab.bench.markdown import write_auto
    from thinwire_lab.bench.results import check_settings, restored
    from thinwire_lab.compare.contenders import split_list

    cases = chosen_cases(model, WORKLOADS, links, LINKS, or_loopback)
    findings = Findings("auto", as_json, output, resume=True)
    chosen = split_list(codecs) if codecs else list(CODECS)
    done = {(row.model, row.link): row for row in restored(AutoRow, findings.kept)}
    for row in done.values():
        check_settings(output, {"hosts": row.ranks, "codecs": row.candidates}, {"hosts": hosts, "codecs": chosen})
    findings.keep(list(done.values()), auto_table(list(done.values())) if done else None)
    waiting = [case for case in cases if case not in done]
    for name, link in waiting:
        with findings.progress(f"{name}, link {link}") as tell:
            done[name, link] = bench_auto(name, link, hosts, chosen, tell)
        findings.add([done[name, link]], auto_table([done[name, link]]))
        if markdown is not None:
            write_auto(markdown, list(done.values()), summed_up(list(done.values())))
    summary = summed_up(list(done.values()))
    if markdown is not None:
        write_auto(markdown, list(done.values()), summary)
    findings.end([summary], summary_table(summary), new=bool(waiting))
