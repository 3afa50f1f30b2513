"""Simulated outer steps do what `attach_outer` does over processes, and what their laws say."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import thinwire
from tests.distributed.processes import run_ranks
from thinwire.outer.settings import OuterSettings
from thinwire_lab.recipes import Images, Recipe, train_simulated
from thinwire_lab.recipes.data import load_images
from thinwire_lab.recipes.outer import OuterSimulation
from thinwire_lab.recipes.recipe import (
    Batches,
    fresh_model,
    learning_rate,
    loss_of,
    make_optimizer,
    set_learning_rate,
)

RECIPE = Recipe(model="mlp", model_options={"width": 8}, batch=4, steps=7, warmup=2, optimizer="adamw", lr=1e-2)
CODEC = "qsgd(bits=6)"
SETTINGS = {"every": 3, "fragments": 2, "overlap": 1, "mix": 0.5, "outer": "nesterov(lr=0.7, momentum=0.9)"}


def simulated(recipe: Recipe, ranks: int, settings: OuterSettings, data: Images) -> OuterSimulation:
    simulation = OuterSimulation(recipe, ranks, settings, data)
    for _ in range(recipe.steps):
        simulation.train_step()
    simulation.synchronize()
    return simulation


def flat(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def attached(rank: int, ranks: int) -> Any:
    data = load_images()
    model = fresh_model(RECIPE, data)
    optimizer = make_optimizer(RECIPE, model)
    handle = thinwire.attach_outer(model, optimizer, CODEC, **SETTINGS)  # type: ignore[arg-type]
    batches = Batches(data.train, batch=RECIPE.batch, seed=RECIPE.seed, rank=rank, ranks=ranks)
    for step in range(RECIPE.steps):
        optimizer.zero_grad()
        loss_of(model, *batches.at(step)).backward()
        set_learning_rate(optimizer, learning_rate(RECIPE, step))
        optimizer.step()
    handle.synchronize()
    handle.close()
    return flat(model).numpy()  # by value: a tensor's memory would be gone with its process


@pytest.mark.distributed
@pytest.mark.timeout(120)
def test_they_equal_those_of_processes() -> None:
    real = run_ranks(2, attached, seconds=90)
    common = flat(simulated(RECIPE, 2, OuterSettings.of(CODEC, SETTINGS), load_images()).common())
    torch.testing.assert_close(real[0], real[1], rtol=0, atol=0)
    torch.testing.assert_close(torch.from_numpy(real[0]), common, rtol=0, atol=1e-6)


def test_every_step_with_sgd_is_the_exchange_of_gradients(small_images: Images, small_recipe: Recipe) -> None:
    recipe = replace(small_recipe, momentum=0.0, weight_decay=0.0)
    outer = simulated(recipe, 3, OuterSettings.of("none", {"every": 1, "outer": "sgd(lr=1)"}), small_images)
    plain = train_simulated(recipe, 3, data=small_images)
    torch.testing.assert_close(flat(outer.common()), flat(plain.model), rtol=0, atol=1e-6)


def test_between_rounds_ranks_differ_and_after_them_they_are_equal(small_images: Images, small_recipe: Recipe) -> None:
    simulation = OuterSimulation(small_recipe, 2, OuterSettings.of("localsgd", {"every": 2}), small_images)
    simulation.train_step()
    assert simulation.average.sent == 0
    assert not torch.equal(*(flat(m) for m in simulation.models))
    means = torch.stack([flat(m) for m in simulation.models]).mean(0)
    torch.testing.assert_close(flat(simulation.models[0]) + flat(simulation.models[1]), 2 * means)
    simulation.train_step()
    assert simulation.average.sent > 0
    assert torch.equal(*(flat(m) for m in simulation.models))
