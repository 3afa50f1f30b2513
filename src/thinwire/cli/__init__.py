"""The command line: `thinwire --help`. Commands import what they need when they run, so that help comes at once."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from thinwire._version import __version__
from thinwire.cli.bench import bench_app
from thinwire.cli.codecs import codecs
from thinwire.cli.compare import compare, report
from thinwire.cli.doctor import doctor
from thinwire.cli.lab import lab_app, run
from thinwire.cli.train import train
from thinwire.errors import ThinwireError


class OneLineErrors(TyperGroup):
    """What the user can put right is told in one line, with exit code 2; anything else is a bug and shows its trace."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (ThinwireError, FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
            text = " ".join(str(error).split())
            typer.echo(f"thinwire: {text}", err=True)
            raise typer.Exit(2) from error


app = typer.Typer(
    cls=OneLineErrors,
    name="thinwire",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"thinwire {__version__}")
        raise typer.Exit()


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Gradient compression for data-parallel training over thin networks.

    Examples:

      thinwire doctor

      thinwire codecs

      thinwire compare --link 100mbit --codecs none,fp16,qsgd --steps 100
    """


# what follows `--` belongs to the script, and so does everything behind the script's name
app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(run)
app.add_typer(lab_app, name="lab")
app.command()(train)
app.command()(compare)
app.command()(report)
app.command()(codecs)
app.add_typer(bench_app, name="bench")
app.command()(doctor)


def main() -> None:
    """The entry point of the `thinwire` command and of `python -m thinwire`, which has the same name in its help."""
    app(prog_name="thinwire")
