"""Models take the sizes of the data, have the size they promise, and every parameter gets a gradient."""

import pytest
import torch

from thinwire_lab.recipes import MODELS, RecipeError, build_model

IMAGE_MODELS = [name for name in MODELS if not name.startswith("gpt")]


def count(name: str, **options: object) -> int:
    return sum(parameter.numel() for parameter in build_model(name, **options).parameters())


@pytest.mark.parametrize("name", IMAGE_MODELS)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_images_become_one_logit_for_each_class(name: str, shape: tuple[int, int, int]) -> None:
    model = build_model(name, shape=shape, classes=7, width=6)
    logits = model(torch.randn(2, *shape))
    assert logits.shape == (2, 7)
    logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.is_contiguous() for p in model.parameters())


def test_gpt_sees_only_the_past() -> None:
    torch.manual_seed(0)
    model = build_model("gpt-tiny", vocabulary=50, context=12)
    tokens = torch.randint(50, (2, 12))
    changed = tokens.clone()
    changed[:, 8] = (changed[:, 8] + 1) % 50
    before, after = model(tokens), model(changed)
    assert before.shape == (2, 12, 50)
    torch.testing.assert_close(before[:, :8], after[:, :8])
    assert not torch.allclose(before[:, 8:], after[:, 8:])


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("vgg", 5.5e6, 5.7e6), ("vgg-tiny", 8e4, 1.2e5), ("gpt", 10e6, 11e6), ("resnet-wide", 4e6, 4.5e6)],
)
def test_sizes_are_as_documented(name: str, least: float, most: float) -> None:
    assert least <= count(name) <= most


def test_width_is_the_size() -> None:
    assert count("vgg", width=8) == count("vgg-tiny")
    assert count("vgg", width=16) > 3 * count("vgg", width=8)


def test_models_have_no_buffers_that_ranks_would_have_to_share() -> None:
    assert not [name for model in MODELS for name, _ in build_model(model).named_buffers()]


def test_wrong_names_list_the_right_ones() -> None:
    with pytest.raises(RecipeError, match="no model 'vg'; known models: vgg, vgg-tiny, resnet"):
        build_model("vg")
    with pytest.raises(RecipeError, match="model vgg has no option depth; its options: shape, classes, width"):
        build_model("vgg", depth=3)
    with pytest.raises(RecipeError, match="multiple of its heads"):
        build_model("gpt", width=10, heads=3)
