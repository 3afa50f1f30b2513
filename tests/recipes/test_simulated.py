"""Simulated ranks: equal seeds give equal bits, and several ranks equal one with the larger batch."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from thinwire_lab.recipes import Images, Recipe, RecipeError, mean, record_gradients, train, train_simulated
from thinwire_lab.recipes.simulated import Gradients, Simulation


def test_equal_seeds_give_equal_bits(small_images: Images, small_recipe: Recipe) -> None:
    one, two = (train_simulated(small_recipe, 4, data=small_images) for _ in range(2))
    other = train_simulated(replace(small_recipe, seed=1), 4, data=small_images)
    assert one.losses == two.losses
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True))
    assert one.losses != other.losses


def test_one_simulated_rank_is_plain_training(small_images: Images, small_recipe: Recipe) -> None:
    simulated = train_simulated(small_recipe, 1, data=small_images)
    real = train(small_recipe, data=small_images, progress=False)
    for a, b in zip(simulated.model.parameters(), real.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert simulated.accuracy == real.accuracy


def test_averaging_sees_every_rank_and_the_weights(small_images: Images, small_recipe: Recipe) -> None:
    seen: list[int] = []

    def first_rank_only(gradients: Sequence[Gradients], weights: Mapping[str, Tensor]) -> Gradients:
        seen.append(len(gradients))
        assert all(g[name].shape == weights[name].shape for g in gradients for name in weights)
        assert not torch.equal(gradients[0]["body.1.weight"], gradients[1]["body.1.weight"])
        return gradients[0]

    run = train_simulated(small_recipe, 3, first_rank_only, data=small_images)
    assert seen == [3] * 6
    assert run.losses != train_simulated(small_recipe, 3, data=small_images).losses


def test_the_mean_of_ranks_is_the_gradient_of_all_their_examples(small_images: Images, small_recipe: Recipe) -> None:
    simulation = Simulation(small_recipe, 4, small_images)
    gradients, _ = simulation.gradients(0)
    x, y = (torch.cat(parts) for parts in zip(*(b.at(0) for b in simulation.batches), strict=True))
    loss = torch.nn.functional.cross_entropy(simulation.model(x), y)
    together = torch.autograd.grad(loss, list(simulation.parameters.values()))
    for averaged, expected in zip(mean(gradients, simulation.weights).values(), together, strict=True):
        torch.testing.assert_close(averaged, expected)


def test_a_missing_gradient_is_named(small_images: Images, small_recipe: Recipe) -> None:
    def forgetful(gradients: Sequence[Gradients], weights: Mapping[str, Tensor]) -> Gradients:
        return {name: g for name, g in gradients[0].items() if name != "body.1.bias"}

    with pytest.raises(RecipeError, match=r"differs in body\.1\.bias"):
        train_simulated(small_recipe, 2, forgetful, data=small_images)


def test_recorded_gradients_belong_to_their_weights(small_images: Images, small_recipe: Recipe) -> None:
    recorded = list(record_gradients(small_recipe, ranks=2, every=2, start=1, data=small_images))
    assert [step.step for step in recorded] == [1, 3, 5]
    simulation = Simulation(small_recipe, 2, small_images)
    simulation.model.load_state_dict(recorded[1].weights)
    again, _ = simulation.gradients(3)
    assert all(torch.equal(a[n], b[n]) for a, b in zip(again, recorded[1].gradients, strict=True) for n in a)


def test_a_small_gpt_learns_a_text(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("thin wires carry less. " * 100)
    options = {"width": 32, "layers": 1}
    recipe = Recipe(
        model="gpt-tiny",
        model_options=options,
        data=str(tmp_path / "text.txt"),
        context=16,
        batch=4,
        steps=40,
        warmup=4,
        optimizer="adamw",
        lr=0.01,
        clip=1.0,
    )
    run = train_simulated(recipe, 2)
    assert run.losses[0] > 5 > 1.5 > run.losses[-1]


def test_the_tiny_cnn_learns_fashion_in_a_few_steps() -> None:
    run = train_simulated(Recipe(steps=30, warmup=5), 2)
    assert run.accuracy > 0.5
