"""Options that `train` and `compare` share: which recipe, and what of it is different."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thinwire.cli.completion import complete_codec
from thinwire_lab.cli.completion import complete_recipe

if TYPE_CHECKING:
    from thinwire_lab.recipes import Recipe

RecipeOption = Annotated[
    str,
    typer.Option(help="What to start from; an unknown name lists the known ones.", autocompletion=complete_recipe),
]
CodecOption = Annotated[
    str,
    typer.Option(help="Chain, preset or plan file that compresses the gradients.", autocompletion=complete_codec),
]
EveryOption = Annotated[
    int | None, typer.Option(help="Outer steps: exchange differences of weights after so many steps.")
]
OuterOption = Annotated[
    str | None, typer.Option(help='Their optimizer: "nesterov(lr=0.7, momentum=0.9)" unless given, "sgd(lr=1)".')
]
DataOption = Annotated[
    str | None,
    typer.Option(help="fashion-subset, fashion, or a path: CIFAR-10, Fashion-MNIST, .npz; a text file for a GPT."),
]
ModelOption = Annotated[str | None, typer.Option(help="vgg, resnet, mlp, gpt, or one of their other sizes.")]
WidthOption = Annotated[int | None, typer.Option(help="Channels or units: the size of the model.")]
BlocksOption = Annotated[int | None, typer.Option(help="Residual blocks of a stage (resnet).")]
LayersOption = Annotated[int | None, typer.Option(help="Layers (mlp, gpt).")]
HeadsOption = Annotated[int | None, typer.Option(help="Attention heads (gpt).")]
StepsOption = Annotated[int | None, typer.Option(help="Steps of training.")]
BatchOption = Annotated[int | None, typer.Option(help="Examples in a batch, on each rank.")]
RateOption = Annotated[float | None, typer.Option("--lr", help="Learning rate.")]
EvaluateOption = Annotated[int | None, typer.Option(help="Steps between evaluations; 0: only at the end.")]
TestLimitOption = Annotated[int | None, typer.Option(help="Test examples that are looked at; 0: all.")]


FIELDS = ("data", "model", "steps", "batch", "lr", "seed", "evaluate_every", "test_limit", "amp")
SIZES = ("width", "blocks", "layers", "heads")


def chosen_recipe(options: Mapping[str, Any], **fixed: object) -> "Recipe":
    """The recipe that a command's options ask for: what is None stays as the recipe has it."""
    from difflib import get_close_matches

    from thinwire_lab.recipes import RECIPES, RecipeError

    name = options["recipe"]
    if name not in RECIPES:
        near = get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise RecipeError(f"there is no recipe {name!r}; {hint}known recipes: {', '.join(RECIPES)}.")
    recipe = RECIPES[name]
    changed = {key: options[key] for key in FIELDS if options.get(key) is not None}
    sizes = {key: options[key] for key in SIZES if options.get(key) is not None}
    return replace(recipe, **changed, **fixed, model_options={**recipe.model_options, **sizes})  # type: ignore[arg-type]
