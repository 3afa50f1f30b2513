"""`thinwire bench predictions`: what `thinwire advise` predicts, beside what then is measured."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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

if TYPE_CHECKING:
    from thinwire_lab.bench.predictions import PredictionRow


def predictions(
    model: Annotated[str, typer.Option(help="vgg, resnet or gpt; several with commas.")] = "vgg,resnet,gpt",
    links: LinksOption = None,
    hosts: HostsOption = 4,
    codecs: CodecsOption = None,
    steps: Annotated[int, typer.Option(help="Steps that are measured with each codec.", min=2)] = 5,
    or_loopback: OnlyPossibleOption = False,
    as_json: JsonOption = False,
    output: ResumedOption = None,
    markdown: MarkdownOption = None,
) -> None:
    """Steps that the planner predicts beside steps that are measured: models, links and codecs.

    Each model is profiled on each link as `thinwire advise` does, then trained for some steps with each codec. The
    target is an error of 15 % in the median and of 30 % at worst. With -o, a file that is there already goes on with
    the cases that it lacks.

    Example:

      thinwire bench predictions --model vgg --links 200mbit --codecs "none; qsgd(bits=4)"
    """
    from thinwire_lab.bench import predictions as measuring
    from thinwire_lab.bench.results import check_settings, restored
    from thinwire_lab.compare.contenders import split_list

    chosen = split_list(codecs) if codecs else list(measuring.CODECS)
    cases = chosen_cases(model, measuring.WORKLOADS, links, measuring.LINKS, or_loopback)
    findings = Findings("predictions", as_json, output, resume=True)
    done: dict[tuple[str, str], list[measuring.PredictionRow]] = {}
    for row in restored(measuring.PredictionRow, findings.kept):
        done.setdefault((row.model, row.link), []).append(row)
    for rows in done.values():
        theirs = {"hosts": rows[0].ranks, "codecs": [row.codec for row in rows]}
        check_settings(output, theirs, {"hosts": hosts, "codecs": chosen})
        findings.keep(rows, measuring.predictions_table(rows))
    waiting = [case for case in cases if case not in done]
    for name, link in waiting:
        with findings.progress(f"{name}, link {link}") as tell:
            workload = measuring.WORKLOADS[name]
            found = measuring.bench_predictions(name, workload, link, hosts, chosen, steps, tell)
        done[name, link] = found
        findings.add(found, measuring.predictions_table(found))
        _write(markdown, done)
    rows = _write(markdown, done)
    summary = measuring.summed_up(rows)
    findings.end([summary], measuring.summary_table(summary), new=bool(waiting))


def _write(markdown: Path | None, done: "Mapping[tuple[str, str], list[PredictionRow]]") -> "list[PredictionRow]":
    """All rows so far, also as a page if that is wished."""
    from thinwire_lab.bench.markdown import write_predictions
    from thinwire_lab.bench.predictions import summed_up

    rows = [row for case in done.values() for row in case]
    if markdown is not None:
        write_predictions(markdown, rows, summed_up(rows))
    return rows
