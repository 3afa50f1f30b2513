"""Options that `train` and `compare` share: which recipe, and what of it is different."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from thinwire.recipes import Recipe

RecipeOption = Annotated[str, typer.Option(help="What to start from; an unknown name lists the known ones.")]
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


def chosen_recipe(name: str, fields: Mapping[str, object], sizes: Mapping[str, int | None]) -> "Recipe":
    """The recipe of this name with whatever is not None changed."""
    from thinwire.recipes import RECIPES, RecipeError

    if name not in RECIPES:
        raise RecipeError(f"there is no recipe {name!r}; known recipes: {', '.join(RECIPES)}.")
    recipe = RECIPES[name]
    changed = {key: value for key, value in fields.items() if value is not None}
    options = {key: value for key, value in sizes.items() if value is not None}
    return replace(recipe, **changed, model_options={**recipe.model_options, **options})  # type: ignore[arg-type]
