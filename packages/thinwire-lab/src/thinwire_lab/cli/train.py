"""`thinwire train`: a recipe, alone, under torchrun, or on the hosts of a lab."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thinwire_lab.cli import recipe_options as recipes

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from thinwire import Handle, OuterHandle, Plan
    from thinwire_lab.recipes import Recipe


def train(
    ctx: typer.Context,
    recipe: recipes.RecipeOption = "fashion-tiny",
    codec: recipes.CodecOption = "none",
    every: recipes.EveryOption = None,
    outer: recipes.OuterOption = None,
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

      thinwire run --link 50mbit -- -m thinwire train --codec sparseloco
    """
    from thinwire import Plan
    from thinwire.outer.settings import preset_name
    from thinwire_lab.compare.outer import outer_text

    chosen = recipes.chosen_recipe(ctx.params)
    if every is not None and preset_name(codec) is None:
        codec = outer_text(codec, every, outer)
    elif every is not None or outer is not None:
        raise typer.BadParameter("--every and --outer are for a codec; give a preset of outer steps its options")
    plan = None if preset_name(codec) is not None else Plan.parse(codec)
    folders = {"metrics": metrics, "checkpoint": checkpoint, "checkpoint_every": checkpoint_every, "resume": resume}
    _train(chosen, plan, codec, folders, as_json)


def _train(recipe: "Recipe", plan: "Plan | None", codec: str, folders: dict[str, Any], as_json: bool) -> None:
    """Without a plan, the codec is that of outer steps."""
    name = codec if plan is None else str(plan)
    from torch.nn.parallel import DistributedDataParallel

    from thinwire import attach, attach_outer
    from thinwire_lab.recipes import joined_world, train

    handles: list[Handle | OuterHandle] = []

    def prepare(parallel: "nn.Module") -> "Handle | OuterHandle | None":
        if not isinstance(parallel, DistributedDataParallel):
            return None
        handles.append(attach(parallel, plan or "none", seed=recipe.seed))
        return handles[0]

    def prepare_outer(model: "nn.Module", optimizer: "Optimizer", scaler: Any) -> "Handle | OuterHandle":
        handles.append(attach_outer(model, optimizer, codec, seed=recipe.seed, scaler=scaler))
        return handles[0]

    with joined_world() as place:
        ways: dict[str, Any] = {"prepare": prepare} if plan is not None else {"prepare_outer": prepare_outer}
        result = train(recipe, progress=not as_json, plan=plan, **ways, **folders)
        if place.rank == 0:
            figures = {"steps": result.steps, "accuracy": result.accuracy, "test_loss": result.test_loss}
            _show(
                figures | {"seconds": result.seconds, "ranks": place.ranks, "codec": name},
                handles,
                as_json,
            )
        for handle in handles:
            handle.close()


def _show(figures: dict[str, Any], handles: "list[Handle | OuterHandle]", as_json: bool) -> None:
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
