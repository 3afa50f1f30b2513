"""The simulator counts the bytes that DDP sends: tensors with a codec share their rounds."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.processes import run_ranks
from thinwire import Codec, StepMetrics, attach
from thinwire.core.reducers import choose_reduction
from thinwire.core.spec import Spec
from thinwire_lab.recipes.compressed import CompressedAverage
from thinwire_lab.recipes.models import build_model

RANKS = 4
CODECS = ("qsgd", "nuqsgd(bits=4)", "sign", "powersgd(rank=2)", "int8", "bf16", "topk(density=1/64)")


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


def small_resnet() -> nn.Module:
    torch.manual_seed(0)
    return build_model("resnet", width=16, blocks=1)


def loss_of(model: nn.Module, rank: int, step: int) -> Tensor:
    images = torch.randn(2, 1, 16, 16, generator=torch.Generator().manual_seed(10 * step + rank))
    loss: Tensor = model(images).square().mean()
    return loss


def bytes_of_ddp(rank: int, ranks: int) -> list[list[int]]:
    """What this rank sends in each step, for each codec; the weights stay as they are."""
    sent = []
    for codec in CODECS:
        model = DistributedDataParallel(small_resnet(), broadcast_buffers=False)
        handle = attach(model, codec, measure_every=0)
        seen: list[StepMetrics] = []
        handle.on_step.append(seen.append)
        for step in range(3):
            model.zero_grad()
            loss_of(model, rank, step).backward()
        handle.close()
        sent.append([figures.bytes_sent for figures in seen])
    return sent


@pytest.mark.distributed
@pytest.mark.timeout(300)
def test_the_simulator_sends_as_many_bytes_as_ddp() -> None:
    ranks = 2
    for codec, seen in zip(CODECS, run_ranks(ranks, bytes_of_ddp, seconds=270)[0], strict=True):
        model, average, before = small_resnet(), CompressedAverage(codec, ranks), 0
        weights = {name: p.detach() for name, p in model.named_parameters()}
        for step, sent in enumerate(seen):
            gradients = [
                dict(
                    zip(weights, torch.autograd.grad(loss_of(model, rank, step), list(model.parameters())), strict=True)
                )
                for rank in range(ranks)
            ]
            average(gradients, weights)
            assert average.sent - before == pytest.approx(sent, rel=0.001 if "topk" in codec else 0), codec
            before = average.sent
