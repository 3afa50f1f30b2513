"""The simulator counts the bytes that DDP sends: tensors with a codec share their rounds."""

import torch
from torch import nn

from thinwire import Codec
from thinwire.core.reducers import choose_reduction
from thinwire.core.spec import Spec
from thinwire_lab.recipes.compressed import CompressedAverage

RANKS = 4


def test_short_tensors_take_the_reduction_of_all_together() -> None:
    """Alone, a short tensor is cheapest in one round of whole messages; beside others, in shards."""
    generator = torch.Generator().manual_seed(0)
    layer, count = (64, 64), 40
    weights = {f"w{i}": torch.randn(layer, generator=generator) for i in range(count)}
    gradients = [{name: torch.randn(layer, generator=generator) for name in weights} for _ in range(RANKS)]
    codec, spec = Codec.parse("qsgd"), Spec.of(layer)
    assert choose_reduction(codec.coders, spec, RANKS) == "gathered"
    assert choose_reduction(codec.coders, spec, RANKS, None, count * spec.numel) == "sharded"
    average = CompressedAverage("qsgd", RANKS)
    average(gradients, weights)
    assert average.sent == count * codec.wire_bytes(layer, RANKS, "sharded")


def test_plain_tensors_are_not_counted_among_those_with_a_codec() -> None:
    layers = nn.ModuleDict({"matrix": nn.Linear(64, 64, bias=False), "norm": nn.LayerNorm(100_000)})
    weights = {name: p.detach() for name, p in layers.named_parameters()}
    gradients = [{name: torch.ones_like(p) for name, p in weights.items()} for _ in range(RANKS)]
    average = CompressedAverage("qsgd", RANKS)
    average(gradients, weights)
    plain = sum(Codec().wire_bytes(p.numel(), RANKS) for name, p in weights.items() if "norm" in name)
    assert average.sent == plain + Codec.parse("qsgd").wire_bytes((64, 64), RANKS, "gathered")
