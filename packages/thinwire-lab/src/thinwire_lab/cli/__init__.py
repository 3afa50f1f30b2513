"""The commands that this package adds to `thinwire`, through an entry point of the group `thinwire.commands`.

Like those of thinwire they import what they need when they run, so that help comes at once.
"""

import typer

from thinwire_lab.cli import bench_auto  # noqa: F401  # it adds a command to bench_app
from thinwire_lab.cli.bench import bench_app
from thinwire_lab.cli.bench_predictions import predictions
from thinwire_lab.cli.compare import compare, report
from thinwire_lab.cli.lab import lab_app, run
from thinwire_lab.cli.train import train

app = typer.Typer(rich_markup_mode="rich")

# what follows `--` belongs to the script, and so does everything behind the script's name
app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(run)
app.add_typer(lab_app, name="lab")
app.command()(train)
app.command()(compare)
app.command()(report)
bench_app.command()(predictions)
app.add_typer(bench_app, name="bench")
