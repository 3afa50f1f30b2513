"""The one exception of the recipes, apart from those of the library."""

from thinwire.errors import ThinwireError


class RecipeError(ThinwireError, ValueError):
    """A data set, model or recipe that does not exist or cannot be read."""
