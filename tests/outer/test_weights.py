"""Anchors of weights in bf16: what is less than the last bit of a weight adds up over the rounds."""

import torch

from thinwire.outer.weights import Anchors


def test_small_outer_steps_of_bf16_weights_add_up() -> None:
    """One rank of eight moves a weight of 1 by its last bit in every round; the mean is an eighth of that."""
    bit, ranks, rounds = 2.0**-8, 8, 16
    weights = [torch.ones(3, dtype=torch.bfloat16) for _ in range(ranks)]
    anchors = [Anchors([("weight", weight)], "sgd(lr=1)") for weight in weights]
    for _ in range(rounds):
        weights[0] -= bit
        differences = [each.differences([0])[0] for each in anchors]
        mean = torch.stack(differences).mean(0)
        for each in anchors:
            each.apply([0], [mean.clone()], mix=1.0)
    for weight, each in zip(weights, anchors, strict=True):
        assert torch.equal(weight.float(), torch.full((3,), 1 - rounds * bit / ranks))
        assert torch.equal(each.values[0], weight.float())
