"""Models that come in wrappers, models that are refused, and what is said when little is compressed."""

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

import thinwire
from tests.ddp.cases import assert_same_everywhere, case, ddp, flat, last_of, net, raised, train
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
        lambda model, original: FabricModule(compiled(model, "aot_eager"), original),
        lambda model, original: compiled(FabricModule(model, original)),
    ):
        original = net()
        wrapped = wrap(ddp(original), original)
        optimizer = torch.optim.SGD(original.parameters(), lr=0.1)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")  # in the compiler
            train(wrapped, rank, range(1), optimizer)  # a compiled graph is there before the hook
            handle = thinwire.attach(wrapped, "topk(density=0.1)")
            train(wrapped, rank, range(1, 3), optimizer)
        assert [d.name for d in handle.plan][:2] == ["first.weight", "first.bias"]
        assert handle.step == 2
        assert last_of(handle).codecs["topk(density=0.1)"].wire_ratio > 3
        assert_same_everywhere(flat(original))
        results.append(flat(original))
        handle.close()
    assert all(torch.allclose(result, results[0], rtol=1e-4, atol=1e-5) for result in results)


@case(2)
def wrappers_without_a_ddp_model_are_refused(rank: int, ranks: int, folder: Path) -> None:
    thinwire.attach(FabricModule(ddp(net()), compiled(net())), "qsgd").close()
    for wrapped in (compiled(net()), FabricModule(net(), ddp(net()))):
        with pytest.raises(
            WorldError, match=r"attach needs a DistributedDataParallel model; got \w+ on 2 ranks\. Write model ="
        ):
            thinwire.attach(wrapped, "qsgd")
    with pytest.raises(WorldError, match=r"got str\. Write handle = thinwire\.attach\(model, 'qsgd'\) with"):
        thinwire.attach("model", "qsgd")  # type: ignore[arg-type]
    kind = type("Accelerator", (), {"__module__": "accelerate.accelerator"})
    with pytest.raises(WorldError, match=r"got Accelerator\. Write handle = thinwire\.integrations\.acc"):
        thinwire.attach(kind(), "qsgd")


@case(2)
def sharded_models_are_refused(rank: int, ranks: int, folder: Path) -> None:
    mesh = init_device_mesh("cpu", (ranks,))
    newer, older = net(), FullyShardedDataParallel(net(), device_id=torch.device("cpu"))
    fully_shard(newer, mesh=mesh)
    for model in (newer, older, compiled(newer)):
        message = raised(partial(thinwire.average_gradients, model, "qsgd", thinwire.GradientState()))
        assert message.startswith("WorldError: the parameters of ")
        assert "are sharded over the ranks" in message
        assert "write handle = thinwire.attach(model, codec)" in message
    assert "are sharded over the ranks, and thinwire does not support FSDP1" in raised(
        lambda: thinwire.attach(older, "qsgd")
    )


@case(2)
def gradients_that_are_not_dense_are_refused_before_anything_changes(rank: int, ranks: int, folder: Path) -> None:
    model, state = net(), thinwire.GradientState()
    model.last.bias.grad = torch.zeros(10).to_sparse()
    with pytest.raises(CodecError, match=r"the gradient of last\.bias must be a plain dense tensor; got one of layout"):
        thinwire.average_gradients(model, "qsgd", state)
    assert model.first.weight.grad is None
    assert state.engine is None


class Adapted(nn.Module):
    """A frozen layer and two factors beside it, as low-rank adapters have."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(32, 48).requires_grad_(False)
        self.down = nn.Linear(32, 32, bias=False)
        self.up = nn.Linear(32, 48, bias=False)
        self.head = nn.Linear(48, 64)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.base(x) + self.up(self.down(x)))
        return result


FEW = r"will compress nothing: no parameter fits the plan powersgd\(rank=16\)"


@case(2)
def plans_say_what_they_will_not_compress(rank: int, ranks: int, folder: Path) -> None:
    model = ddp(Adapted())
    with pytest.warns(RuntimeWarning, match=FEW + r" \(powersgd\(rank=16\): too small for rank 16, travels") as caught:
        handle = thinwire.attach(model, "powersgd(rank=16)")
    assert caught[0].filename == __file__
    assert [str(d.codec) for d in handle.plan] == ["none"] * 4
    partly = {"up*": "qsgd(bits=4)", "*": "powersgd(rank=16)"}
    with pytest.warns(RuntimeWarning, match=r"will compress only 27% of the elements with the plan \{") as caught:
        handle.use(partly)
    assert caught[0].filename == __file__
    train(model, rank, range(2))
    coded = last_of(handle).codecs
    assert set(coded) == {"qsgd(bits=4)", "none"}
    assert coded["none"].wire_ratio == coded["none"].element_ratio == 1.0
    handle.use({"up*": "qsgd(bits=4)", "*": "none"})  # left out on purpose: no warning
    handle.close()
    with pytest.warns(RuntimeWarning, match=r"will compress nothing.*rule '\*'"):
        thinwire.attach(ddp(Adapted()), {"encoder.*": "qsgd", "*": "none"}).close()


@case(2)
def loops_of_ones_own_say_it_once(rank: int, ranks: int, folder: Path) -> None:
    model, state = Adapted(), thinwire.GradientState()
    with pytest.warns(RuntimeWarning, match=FEW) as caught:
        thinwire.average_gradients(model, "powersgd(rank=16)", state)
    assert caught[0].filename == __file__
    thinwire.average_gradients(model, "powersgd(rank=16)", state)
    flat_tensor = torch.ones(5000)
    with pytest.warns(
        RuntimeWarning, match=r"of shape \(5000,\) \(powersgd\(rank=3\): it is no matrix, travels"
    ) as caught:
        thinwire.average(flat_tensor, "powersgd(rank=3)")
    assert caught[0].filename == __file__
    thinwire.average(flat_tensor, "powersgd(rank=3)")
    thinwire.average(torch.ones(100, 50), "powersgd(rank=2)")
    thinwire.average(flat_tensor, "gradiveq(travel='qsgd(bits=8)')")


@case(2)
def element_ratios_count_what_left(rank: int, ranks: int, folder: Path) -> None:
    for chain, start, plain in (
        ("pca(ratio=8, warmup=0, sample=2, reuse=9)", 0, 2),
        ("powersgd(rank=1, warmup=2)", 0, 2),
        ("delay(steps=2) | topk(density=0.1)", 0, 2),
        ("topk(density=0.1)", 2, 2),
    ):
        model = ddp(net(), bucket_cap_mb=0.01)
        handle = thinwire.attach(model, chain, start=start)
        ratios: list[float] = []
        for step in range(plain + 1):
            train(model, rank, range(step, step + 1))
            ratios.append(last_of(handle).element_ratio)
        assert ratios[:plain] == [1.0] * plain
        assert ratios[plain] > 3
        handle.close()


def sgd(model: nn.Module, momentum: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)


@case(2)
def momentum_in_chain_and_optimizer_is_said(rank: int, ranks: int, folder: Path) -> None:
    twice = r"has momentum in its chain, and SGD has momentum too.*train with an optimizer without momentum"
    for chain in ("dgc(warmup=0)", "iwp(momentum=0.9)", {"first.*": "onebit(momentum=0.9)", "*": "qsgd"}):
        model = ddp(net())
        with pytest.warns(RuntimeWarning, match=twice) as caught:
            thinwire.attach(model, chain, optimizer=sgd(model, 0.9)).close()
        assert caught[0].filename == __file__
        model = ddp(net())
        thinwire.attach(model, chain, optimizer=sgd(model, 0.0)).close()
    model = ddp(net())
    handle = thinwire.attach(model, "qsgd", optimizer=sgd(model, 0.9))
    with pytest.warns(RuntimeWarning, match=twice):
        handle.use("dgc")
    handle.close()
    model = ddp(net())
    only_biases = torch.optim.SGD([p for p in model.parameters() if p.dim() == 1], lr=0.1, momentum=0.9)
    thinwire.attach(model, "dgc", optimizer=only_biases).close()  # they are not compressed
    own = net()
    with pytest.warns(RuntimeWarning, match=twice) as caught:
        thinwire.average_gradients(own, "dgc", thinwire.GradientState(optimizer=sgd(own, 0.9)))
    assert caught[0].filename == __file__


@case(2)
def biased_codecs_in_front_of_adam_are_said(rank: int, ranks: int, folder: Path) -> None:
    biased = r"topk\(density=0\.1\) is biased, and \w+ divides by a mean of squared gradients.*prefer an unbiased codec"
    for kind in (torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adadelta):
        model = ddp(net())
        optimizer = kind(model.parameters(), lr=0.1)
        with pytest.warns(RuntimeWarning, match=biased):
            thinwire.attach(model, "topk(density=0.1)", optimizer=optimizer).close()
    for chain in ("qsgd(bits=4)", "bf16", "int8", "none"):
        model = ddp(net())
        thinwire.attach(model, chain, optimizer=torch.optim.Adam(model.parameters())).close()
    model = ddp(net())
    with pytest.warns(RuntimeWarning, match=r"has momentum in its chain, and Adam has momentum too"):
        thinwire.attach(model, "dgc", optimizer=torch.optim.Adam(model.parameters())).close()
    for wrong in (3, [model]):
        with pytest.raises(CodecError, match=r"optimizer must be a torch\.optim\.Optimizer; got \w+"):
            thinwire.attach(ddp(net()), "qsgd", optimizer=wrong)
        with pytest.raises(CodecError, match=r"optimizer must be a torch\.optim\.Optimizer; got \w+"):
            thinwire.GradientState(optimizer=wrong)
