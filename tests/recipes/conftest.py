"""A recipe for a data set small enough for steps of a millisecond."""

import pytest

from thinwire_lab.recipes import Recipe


@pytest.fixture
def small_recipe() -> Recipe:
    return Recipe(model="mlp", model_options={"width": 8}, batch=8, steps=6, warmup=2, log_every=2)
