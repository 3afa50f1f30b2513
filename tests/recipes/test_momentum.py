"""Momentum is either in the chain or in the optimiser, never in both, and trains alike wherever it is."""

from dataclasses import replace

import pytest
import torch

from thinwire import Codec, Plan
from thinwire_lab.recipes import RECIPES, Images
from thinwire_lab.recipes.compressed import CompressedAverage
from thinwire_lab.recipes.momentum import chain_momentum, momenta_of, where_momentum_is
from thinwire_lab.recipes.recipe import fresh_model, make_optimizer
from thinwire_lab.recipes.simulated import train_simulated

RECIPE = replace(RECIPES["fashion-tiny"], batch=4, steps=6, lr=0.05, weight_decay=0.01)


@pytest.fixture(scope="module")
def images() -> Images:
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(64, 1, 28, 28, generator=random), torch.randint(0, 10, (64,), generator=random)
    return Images(train_x=x, train_y=y, test_x=x, test_y=y, classes=tuple("0123456789"))


@pytest.mark.parametrize(
    ("text", "momentum"),
    [
        ("none", 0.0),
        ("qsgd", 0.0),
        ("iwp", 0.0),
        ("fftsgd", 0.0),
        ("fftsgd(momentum=0.9)", 0.9),
        ("iwp(momentum=0.8)", 0.8),
        ("dgc", 0.9),
        ("feedback(keep=bf16) | momentum(beta=0.5) | topk(density=0.1)", 0.5),
    ],
)
def test_a_chain_tells_its_momentum(text: str, momentum: float) -> None:
    assert chain_momentum(Codec.parse(text)) == momentum
    assert where_momentum_is(Plan.parse(text)) == ("chain" if momentum else "optimiser")


def test_the_optimiser_has_momentum_only_where_the_chain_has_none(images: Images) -> None:
    model = fresh_model(RECIPE, images)
    plan = Plan.parse({"head.*": "qsgd", "*": "fftsgd(momentum=0.9)"})
    momenta = momenta_of(plan, model.named_parameters())
    groups = {
        id(parameter): group
        for group in make_optimizer(RECIPE, model, plan).param_groups
        for parameter in group["params"]
    }
    seen = set()
    for name, parameter in model.named_parameters():
        in_chain = parameter.numel() >= 1024 and parameter.dim() > 1 and not name.startswith("head.")
        group = groups[id(parameter)]
        assert momenta[name] == (0.9 if in_chain else 0.0)
        assert group["momentum"] == (0.0 if in_chain else 0.9)
        assert group["weight_decay"] == pytest.approx(0.1 if in_chain else 0.01)
        seen.add(in_chain)
    assert seen == {True, False}


def test_adam_and_baselines_keep_what_the_recipe_says(images: Images) -> None:
    model = fresh_model(RECIPE, images)
    adam = make_optimizer(replace(RECIPE, optimizer="adamw"), model, Plan.parse("dgc"))
    assert [group["betas"] for group in adam.param_groups] == [(0.9, 0.95)]
    assert [group["momentum"] for group in make_optimizer(RECIPE, model).param_groups] == [0.9]


def test_a_chain_that_loses_nothing_trains_as_the_optimiser_does(images: Images) -> None:
    recipe = replace(RECIPE, weight_decay=0.0)
    plan = Plan.parse("momentum(beta=0.9)")
    in_chain = train_simulated(recipe, 2, CompressedAverage(plan, 2), data=images, plan=plan)
    in_optimiser = train_simulated(recipe, 2, CompressedAverage("none", 2), data=images, plan=Plan.parse("none"))
    both = train_simulated(recipe, 2, CompressedAverage(plan, 2), data=images)
    assert in_chain.losses == pytest.approx(in_optimiser.losses, rel=1e-3)
    assert both.losses[-1] != pytest.approx(in_optimiser.losses[-1], rel=1e-2)
