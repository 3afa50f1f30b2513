"""`thinwire train`: a recipe, alone, under torchrun, or on the hosts of a lab."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thinwire_lab.cli import recipe_options as recipes

if TYPE_CHECKING:
    from torch import nn

    from thinwire import Handle, Plan
    from thinwire_lab.recipes import Recipe


def train(
    ctx: typer.Context,
    recipe: recipes.RecipeOption = "fashion-tiny",
    codec: recipes.CodecOption = "none",
    data: recipes.DataOption = None,
    model: recipes.ModelOption = None,
    width: recipes.WidthOption = None,
    blocks: recipes.BlocksOption = None,
    layers: recipes.LayersOption = None,
    heads: recipes.HeadsOption = None,
    steps: recipes.StepsOption = None,
    batch: recipes.BatchOption = None,
    lr: recipes.RateOption = None,
    seed: Annotated[int, typer.Option(help="Seed of weights, batches and codec.")] = 0,
    evaluate_every: recipes.EvaluateOption = None,
    test_limit: recipes.TestLimitOption = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Folder for checkpoints.")] = None,
    checkpoint_every: Annotated[int, typer.Option(help="Steps between checkpoints; 0: only at the end.")] = 0,
    resume: Annotated[Path | None, typer.Option(help="Folder of checkpoints to go on from.")] = None,
    metrics: Annotated[Path | None, typer.Option(help="JSONL file for the figures of the steps.")] = None,
    amp: Annotated[bool, typer.Option("--amp", help="Compute in 16 bits where it is safe.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, and no progress bar.")] = False,
) -> None:
    """Train a recipe: alone, under torchrun, or on the thin links of `thinwire run`.

    Examples:

      thinwire train --recipe fashion-mlp --steps 100

      torchrun --nproc-per-node 2 -m thinwire train --codec "qsgd(bits=4)"

      thinwire run --link 100mbit -- -m thinwire train --codec nuqsgd
    """
    from thinwire import Plan

    chosen, plan = recipes.chosen_recipe(ctx.params), Plan.parse(codec)
    folders = {"metrics": metrics, "checkpoint": checkpoint, "checkpoint_every": checkpoint_every, "resume": resume}
    _train(chosen, plan, folders, as_json)


def _train(recipe: "Recipe", plan: "Plan", folders: dict[str, Any], as_json: bool) -> None:
    from torch.nn.parallel import DistributedDataParallel

    from thinwire import attach
    from thinwire_lab.recipes import joined_world, train

    handles: list[Handle] = []

    def prepare(parallel: "nn.Module") -> "Handle | None":
        if not isinstance(parallel, DistributedDataParallel):
            return None
        handles.append(attach(parallel, plan, seed=recipe.seed))
        return handles[0]

    with joined_world() as place:
        result = train(recipe, prepare=prepare, progress=not as_json, plan=plan, **folders)
        if place.rank == 0:
            figures = {"steps": result.steps, "accuracy": result.accuracy, "test_loss": result.test_loss}
            _show(figures | {"seconds": result.seconds, "ranks": place.ranks, "codec": str(plan)}, handles, as_json)
        for handle in handles:
            handle.close()


def _show(figures: dict[str, Any], handles: "list[Handle]", as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(figures))
        return
    from rich.console import Console

    console = Console()
    if handles:
        console.print(handles[0].report())
    elif figures["codec"] != "none":
        console.print(f"one rank alone sends nothing, so {figures['codec']} had nothing to compress", markup=False)
    console.print(
        "{steps} steps in {seconds:.1f} s: accuracy {accuracy:.1%}, test loss {test_loss:.3f}".format(**figures),
        markup=False,
    )
