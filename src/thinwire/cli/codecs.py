"""`thinwire codecs`: what there is to choose from, and what a chain does."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thinwire.errors import CodecError

if TYPE_CHECKING:
    from rich.table import Table

codecs_app = typer.Typer()
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@codecs_app.callback(invoke_without_command=True)
def codecs(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """List stages and presets, their options with defaults, and the bits of a number on the wire.

    Examples:

      thinwire codecs

      thinwire codecs explain "topk(density=0.01)" --shape 512,512,3,3 --ranks 8
    """
    if ctx.invoked_subcommand is not None:
        return
    from thinwire.cli.catalogue import catalogue

    entries = catalogue()
    if as_json:
        typer.echo(json.dumps(entries))
        return
    from rich.console import Console

    console = Console()
    for kind, title in (("stage", "Stages, to be joined with |"), ("preset", "Presets: whole chains")):
        console.print(_catalogue_table([entry for entry in entries if entry["kind"] == kind], title))
    console.print('bits: of a number on the wire, 32 uncompressed. thinwire codecs explain "qsgd(bits=4)" tells more.')


def _catalogue_table(entries: list[dict[str, Any]], title: str) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", show_lines=True)
    for column in ("name", "bits", "what it does", "options"):
        table.add_column(column, justify="right" if column == "bits" else "left", no_wrap=column in ("name", "bits"))
    for entry in entries:
        options = "\n".join(
            f"[bold]{o['name']}[/]={escape(o['default'])}" + (f"  [dim]{escape(o['help'])}[/]" if o["help"] else "")
            for o in entry["options"]
        )
        bits = "" if entry["bits"] is None else f"{'' if entry['exact'] else '~'}{entry['bits']:.2f}"
        table.add_row(entry["name"], bits, escape(entry["does"]), options)
    return table


@codecs_app.command()
def explain(
    chain: Annotated[str, typer.Argument(help='A chain or preset, e.g. "qsgd(bits=4)".')],
    numel: Annotated[int | None, typer.Option(help="Numbers of the gradient.")] = None,
    shape: Annotated[str | None, typer.Option(help="Shape of the gradient in place of --numel: 512,512,3,3.")] = None,
    ranks: Annotated[int, typer.Option(help="Ranks that average.")] = 4,
    as_json: JsonOption = False,
) -> None:
    """Say what each stage of a chain does, where sums are taken, what travels, and how many bytes.

    Examples:

      thinwire codecs explain "qsgd(bits=4)"

      thinwire codecs explain "topk(density=0.01)" --shape 512,512,3,3 --ranks 8
    """
    from thinwire.cli.catalogue import explanation, explanation_lines

    facts = explanation(chain, _shape(numel, shape), ranks)
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        typer.echo("\n".join(explanation_lines(facts)))


def _shape(numel: int | None, shape: str | None) -> tuple[int, ...]:
    if shape is None:
        extents: tuple[int, ...] = (numel,) if numel is not None else (1000, 1000)
    else:
        try:
            extents = tuple(int(part) for part in shape.replace("x", ",").split(","))
        except ValueError:
            raise CodecError(f"a shape is whole numbers with commas, not {shape!r}; write 512,512,3,3.") from None
    if any(extent < 1 for extent in extents):
        raise CodecError(f"a gradient has at least one number in each direction, not {extents}.")
    return extents
