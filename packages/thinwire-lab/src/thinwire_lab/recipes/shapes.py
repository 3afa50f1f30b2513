"""The parameters of a recipe's model, for a prediction without training."""

from thinwire_lab.recipes.errors import RecipeError
from thinwire_lab.recipes.recipe import RECIPES, fresh_model, load_data


def shapes_of_recipe(name: str) -> dict[str, tuple[int, ...]]:
    """Shapes by name, in the order of the forward pass."""
    if name not in RECIPES:
        raise RecipeError(f"there is no recipe {name!r}; known recipes: {', '.join(RECIPES)}.")
    recipe = RECIPES[name]
    return {n: tuple(p.shape) for n, p in fresh_model(recipe, load_data(recipe)).named_parameters()}
