"""The command line: `thinwire --help`. Commands import what they need when they run, so that help comes at once."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from thinwire._version import __version__
from thinwire.cli.advise import advise
from thinwire.cli.codecs import codecs
from thinwire.cli.doctor import doctor
from thinwire.cli.installed import check_command, installed_commands
from thinwire.cli.selftest import selftest
from thinwire.errors import ThinwireError


class CommandLine(TyperGroup):
    """The commands of thinwire and of packages that add some.

    What the user can put right is told in one line, with exit code 2; anything else is a bug and shows its trace.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {**self.commands, **installed_commands(), **self.commands}  # own ones first, and none replaced

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = super().get_command(ctx, cmd_name)
        if found is None and not ctx.resilient_parsing:  # a shell that completes words wants no errors
            check_command(cmd_name)
        return found

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (ThinwireError, FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
            text = " ".join(str(error).split())
            typer.echo(f"thinwire: {text}", err=True)
            raise typer.Exit(2) from error


app = typer.Typer(
    cls=CommandLine,
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

      thinwire codecs "topk(density=1/64) | huffman" --ranks 8
    """


# what follows `--` belongs to the script, and so does everything behind the script's name
app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(advise)
app.command()(codecs)
app.command()(doctor)
app.command()(selftest)


def main() -> None:
    """The entry point of the `thinwire` command and of `python -m thinwire`, which has the same name in its help."""
    app(prog_name="thinwire")
