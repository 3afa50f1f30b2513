"""`thinwire compare` and `thinwire report`: who wins over thin links, and the page that shows it."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thinwire_lab.cli import compare_options as options
from thinwire_lab.cli import recipe_options as recipes
from thinwire_lab.cli.lab import HostsOption, LatencyOption, LinkOption, ProcsOption

if TYPE_CHECKING:
    from thinwire_lab.compare.contenders import Contender
    from thinwire_lab.compare.session import Comparison, Session
    from thinwire_lab.lab import LabSpec
    from thinwire_lab.report.record import RunLog


def compare(
    ctx: typer.Context,
    codecs: options.CodecsOption = None,
    codec: options.MoreOption = None,
    baseline: options.BaselineOption = None,
    every: recipes.EveryOption = None,
    outer: recipes.OuterOption = None,
    hosts: HostsOption = 4,
    link: LinkOption = "200mbit",
    latency: LatencyOption = "0ms",
    procs_per_host: ProcsOption = 1,
    or_loopback: options.OrLoopbackOption = False,
    recipe: recipes.RecipeOption = "fashion-vgg",
    data: recipes.DataOption = None,
    model: recipes.ModelOption = None,
    width: recipes.WidthOption = None,
    blocks: recipes.BlocksOption = None,
    layers: recipes.LayersOption = None,
    heads: recipes.HeadsOption = None,
    steps: recipes.StepsOption = None,
    epochs: options.EpochsOption = None,
    seconds: options.SecondsOption = None,
    batch: recipes.BatchOption = None,
    lr: recipes.RateOption = None,
    seed: options.SeedOption = 0,
    seeds: options.SeedsOption = 1,
    evaluate_every: recipes.EvaluateOption = None,
    test_limit: recipes.TestLimitOption = None,
    target: options.TargetOption = None,
    output: options.ResultsOption = Path("results.jsonl"),
    resume: options.ResumeOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the final table as JSON.")] = False,
) -> None:
    """Train the same thing once for each codec over thin links, and show who wins.

    A codec that fails is told in one line, and the others go on.

    Examples:

      thinwire compare --link 100mbit --codecs none,fp16,qsgd --steps 100

      thinwire compare --codecs "none; topk(density=0.01)" --baseline ddp

      thinwire compare --link 100mbit --seconds 20 --target 0.7

      thinwire compare --codecs "none; qsgd; diloco(every=50); sparseloco"

      thinwire compare --codecs "none; qsgd" --baseline ddp --every 30
    """
    from thinwire_lab.compare.session import Comparison, Session, prepared, typed_command

    _check_length(steps, epochs, seconds, evaluate_every)
    comparison = Comparison(
        contenders=_contenders(codecs, codec or [], baseline, every, outer),
        recipe=recipes.chosen_recipe(ctx.params, log_every=1),
        recipe_name=recipe,
        lab=_lab_spec(hosts, link, latency, or_loopback),
        procs_per_host=procs_per_host,
        seeds=seeds,
        seconds=seconds,
        target=_accuracy(target),
        command=typed_command(),
    )
    comparison, parameters = prepared(comparison, epochs, spread_evaluations=evaluate_every is None)
    logs = _run(Session(comparison, parameters, output, resume), comparison, quiet=as_json)
    _show(logs, comparison, output, as_json)


def _check_length(steps: int | None, epochs: float | None, seconds: float | None, evaluate_every: int | None) -> None:
    """A run has one length."""
    from thinwire_lab.recipes import RecipeError

    given = {"--steps": steps, "--epochs": epochs, "--seconds": seconds}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise RecipeError(f"a run has one length, but {' and '.join(names)} are given; leave all but one out.")
    if seconds is not None and evaluate_every is not None:
        raise RecipeError(
            f"--evaluate-every {evaluate_every} counts steps, but with --seconds the evaluations follow the clock;"
            " leave --evaluate-every out."
        )


def _lab_spec(hosts: int, link: str, latency: str, or_loopback: bool) -> "LabSpec":
    from thinwire_lab.lab import LabSpec, why_no_thin_links

    spec = LabSpec(hosts=hosts, links=link, latency=latency)
    if or_loopback and not spec.is_loopback and (reason := why_no_thin_links()) is not None:
        typer.echo(f"Links cannot be shaped here: {reason}.", err=True)
        typer.echo("Comparing on plain loopback, where the network is no bottleneck to relieve.", err=True)
        return LabSpec(hosts=hosts, links="none")
    return spec


def _contenders(
    codecs: str | None, more: list[str], baseline: str | None, every: int | None, outer: str | None
) -> "list[Contender]":
    from thinwire_lab.compare.contenders import parse_contenders, usual_contenders

    if codecs is None and not more:
        codecs = usual_contenders()
    return parse_contenders([text for text in (codecs, *more, baseline) if text], every, outer)


def _accuracy(target: float | None) -> float | None:
    """85 and 0.85 both mean 85 %."""
    if target is None:
        return None
    share = target / 100 if target > 1 else target
    if not 0 < share <= 1:
        raise typer.BadParameter(f"an accuracy lies between 0 and 1 (or 100), not at {target}")
    return share


def _run(session: "Session", comparison: "Comparison", quiet: bool) -> "list[RunLog]":
    """Run what is waiting, with a live table on a terminal and a line for each run elsewhere."""
    from rich.console import Console
    from rich.live import Live

    from thinwire_lab.compare.table import Board, place_line, run_line
    from thinwire_lab.report.record import Record, Summary, read_results

    console = Console(stderr=True)
    board = Board(comparison, read_results(session.path) if session.path.exists() else [])
    if console.is_terminal and not quiet:
        with Live(board, console=console, refresh_per_second=4, transient=True):
            session.run(board.hear)
        return board.finished()

    def tell(record: Record) -> None:
        board.hear(record)
        if isinstance(record, Summary):
            typer.echo(f"{run_line(record)} ({board.progress_line()})", err=True)

    typer.echo(place_line(comparison), err=True)
    session.run(tell)
    return board.finished()


def _show(logs: "list[RunLog]", comparison: "Comparison", output: Path, as_json: bool) -> None:
    from rich.console import Console

    from thinwire_lab.compare.story import story
    from thinwire_lab.compare.table import failed_lines, final_table, notes_below, place_line
    from thinwire_lab.report.standings import standings

    rows = standings(logs)
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows]))
        return
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 160)  # a table in a file need not be folded
    console.print(final_table(rows, place_line(comparison), comparison.target, console.width))
    for line in notes_below(rows):
        console.print(line, style="dim", markup=False, highlight=False)
    for line in failed_lines(rows):
        typer.secho(line, fg="red")
    typer.echo(f"results: {output}; a page of plots: thinwire report {output}")
    for line in story(rows, comparison):
        console.print(line, style="bold", markup=False, highlight=False)


def report(
    results: Annotated[Path, typer.Argument(help="The JSONL file that `thinwire compare` wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page.")] = Path("report.html"),
    png: Annotated[Path | None, typer.Option(help="Folder for the plots as PNG.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Folder for the plots as SVG.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="File for the final table as Markdown.")] = None,
) -> None:
    """Make one self-contained HTML page of a comparison, and plots for papers.

    Examples:

      thinwire report results.jsonl -o report.html

      thinwire report results.jsonl --svg figures --markdown results.md
    """
    from thinwire_lab.report.markdown import write_markdown
    from thinwire_lab.report.page import export_plots, write_page

    write_page(results, output)
    typer.echo(f"the report is in {output.absolute()}")
    if png is not None:
        export_plots(results, png, "png")
        typer.echo(f"plots are in {png.absolute()}")
    if svg is not None:
        export_plots(results, svg, "svg")
        typer.echo(f"plots are in {svg.absolute()}")
    if markdown is not None:
        write_markdown(results, markdown)
        typer.echo(f"the table is in {markdown.absolute()}")
