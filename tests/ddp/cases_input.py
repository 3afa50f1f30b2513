"""Models that come in wrappers, models that are refused, and what is said when little is compressed."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

import thinwire
from tests.ddp.cases import assert_same_everywhere, case, ddp, flat, net, raised, train
from thinwire import CodecError, WorldError


class FabricModule(nn.Module):
    """What Lightning Fabric makes of a model: it calls one module, and answers for attributes of another."""

    def __init__(self, forward_module: nn.Module, original_module: nn.Module) -> None:
        super().__init__()
        self._forward_module = forward_module
        self._original_module = original_module

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self._forward_module(x)
        return result

    def __getattr__(self, item: str) -> Any:
        try:
            return super().__getattr__(item)
        except AttributeError:
            return getattr(super().__getattr__("_original_module"), item)


def compiled(module: nn.Module, backend: str = "eager") -> nn.Module:
    wrapped: nn.Module = torch.compile(module, backend=backend)  # type: ignore[assignment]
    return wrapped


@case(2)
def ddp_models_are_found_in_wrappers(rank: int, ranks: int, folder: Path) -> None:
    results = []
    for wrap in (
        lambda model, _: model,
        lambda model, _: compiled(model, "aot_eager"),
        lambda model, original: FabricModule(compiled(model), original),
        lambda model, original: FabricModule(model, compiled(original)),
        lambda model, original: compiled(FabricModule(model, original)),
    ):
        original = net()
        wrapped = wrap(ddp(original), original)
        handle = thinwire.attach(wrapped, "topk(density=0.1)")
        assert [d.name for d in handle.plan][:2] == ["first.weight", "first.bias"]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")  # in the compiler
            train(wrapped, rank, range(3), torch.optim.SGD(original.parameters(), lr=0.1))
        assert handle.step == 3
        assert handle.metrics()["codecs"]["topk(density=0.1)"]["wire_ratio"] > 3
        assert_same_everywhere(flat(original))
        results.append(flat(original))
        handle.close()
    assert all(torch.allclose(result, results[0], rtol=1e-4, atol=1e-5) for result in results)


@case(2)
def a_compiled_model_that_has_trained_is_compressed_from_then_on(rank: int, ranks: int, folder: Path) -> None:
    model = compiled(ddp(net()))
    train(model, rank, range(2))
    handle = thinwire.attach(model, "qsgd(bits=4)")
    train(model, rank, range(2, 4))
    assert handle.step == 2
    assert handle.metrics()["codecs"]["qsgd(bits=4)"]["wire_ratio"] > 7
    assert_same_everywhere(flat(model))
    handle.close()


@case(2)
def wrappers_without_a_ddp_model_are_refused(rank: int, ranks: int, folder: Path) -> None:
    for wrapped in (compiled(net()), FabricModule(net(), ddp(net()))):
        with pytest.raises(WorldError, match=r"attach needs a DistributedDataParallel model; got \w+\. Wrap it first"):
            thinwire.attach(wrapped, "qsgd")
    with pytest.raises(WorldError, match="got str"):
        thinwire.attach("model", "qsgd")  # type: ignore[arg-type]


@case(2)
def sharded_models_are_refused(rank: int, ranks: int, folder: Path) -> None:
    mesh = init_device_mesh("cpu", (ranks,))
    newer, older = net(), FullyShardedDataParallel(net(), device_id=torch.device("cpu"))
    fully_shard(newer, mesh=mesh)
    for model in (newer, older, compiled(newer)):
        for call in (
            lambda model=model: thinwire.attach(model, "qsgd"),
            lambda model=model: thinwire.average_gradients(model, "qsgd", thinwire.GradientState()),
        ):
            message = raised(call)
            assert message.startswith("WorldError: the parameters of ")
            assert "are sharded over the ranks, and thinwire does not support FSDP" in message
            assert "average_gradients" not in message


@case(2)
def gradients_that_are_not_dense_are_refused_before_anything_changes(rank: int, ranks: int, folder: Path) -> None:
    model, state = net(), thinwire.GradientState()
    model.last.bias.grad = torch.zeros(10).to_sparse()
    with pytest.raises(CodecError, match=r"the gradient of last\.bias must be a plain dense tensor; got one of layout"):
        thinwire.average_gradients(model, "qsgd", state)
    assert model.first.weight.grad is None
    assert state.engine is None
