"""Tensors that thinwire cannot read are refused in a sentence at every entry point, before anything is changed."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate

import thinwire
from thinwire import Codec, CodecError, Slot, StateError

SHAPE = (64,)


class Wrapper(Tensor):
    """A tensor that only describes another one, as those of other libraries do."""

    wrapped: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Wrapper":
        made: Wrapper = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.wrapped = inner
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        inner = [a.wrapped if isinstance(a, Wrapper) else a for a in args]
        out = func(*inner, **(kwargs or {}))
        return cls(out) if isinstance(out, Tensor) else out


def dtensor() -> Tensor:
    return DTensor.from_local(torch.ones(SHAPE), init_device_mesh("cpu", (1,)), [Replicate()])


def fake() -> Tensor:
    with FakeTensorMode():
        return torch.ones(SHAPE)


def quantised() -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it will be removed
        return torch.quantize_per_tensor(torch.ones(SHAPE), 0.1, 0, torch.qint8)


def freed() -> Tensor:
    tensor = torch.ones(SHAPE)
    tensor.untyped_storage().resize_(0)
    return tensor


SPECIAL: dict[str, Callable[[], Any]] = {
    "got a DTensor; pass its local part, x.to_local()": dtensor,
    "got a Wrapper; pass a torch.Tensor": lambda: Wrapper(torch.ones(SHAPE)),
    "got a FakeTensor": fake,
    "got one of layout sparse_coo; convert it with .to_dense()": lambda: torch.ones(SHAPE).to_sparse(),
    "got one of layout _mkldnn": lambda: torch.ones(SHAPE).to_mkldnn(),
    "got a quantised tensor; convert it with .dequantize()": quantised,
    "got a meta tensor, which has no data; create it on a device": lambda: torch.ones(SHAPE, device="meta"),
    "got a view that is negated or conjugated when it is read": lambda: torch._neg_view(torch.ones(SHAPE)),
    "got a tensor without memory": freed,
    "must be a tensor; got list": lambda: [1.0] * SHAPE[0],
}
TENSOR, BYTES = torch.ones(SHAPE), Codec.parse("qsgd").encode(torch.ones(SHAPE))
QSGD = Codec.parse("qsgd")
TAKES_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "average": lambda t: thinwire.average(t, "qsgd"),
    "average without compression": lambda t: thinwire.average(t, "none"),
    "weights of average": lambda t: thinwire.average(TENSOR, "iwp", weights=t),
    "simulate": lambda t: thinwire.simulate("qsgd", [TENSOR, t]),
    "weights of simulate": lambda t: thinwire.simulate("iwp", [TENSOR, TENSOR], weights=t),
    "encode": lambda t: QSGD.encode(t),
}
TAKES_MEMORY: dict[str, Callable[[Any], Any]] = {
    "out of average": lambda t: thinwire.average(TENSOR, "qsgd", out=t),
    "out of encode": lambda t: QSGD.encode(TENSOR, out=t),
    "message of decode": lambda t: QSGD.decode(t, SHAPE[0]),
    "out of decode": lambda t: QSGD.decode(BYTES, SHAPE[0], out=t),
}


@pytest.fixture(autouse=True, scope="module")
def world_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("message", SPECIAL)
@pytest.mark.parametrize("entry", [*TAKES_NUMBERS, *TAKES_MEMORY])
def test_what_is_not_plain_and_dense_is_refused(entry: str, message: str) -> None:
    with pytest.raises(CodecError) as caught:
        {**TAKES_NUMBERS, **TAKES_MEMORY}[entry](SPECIAL[message]())
    assert message in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn])
@pytest.mark.parametrize("entry", TAKES_NUMBERS)
def test_other_types_of_numbers_are_refused(entry: str, dtype: torch.dtype) -> None:
    with pytest.raises(CodecError) as caught:
        TAKES_NUMBERS[entry](torch.ones(SHAPE).to(dtype))
    assert f"must be of type float32, float64, float16 or bfloat16; got {dtype};" in str(caught.value)
    assert ("use torch.view_as_real" if dtype.is_complex else "convert it with .float()") in str(caught.value)


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.grad])
def test_transforms_of_functions_are_refused(transform: Any) -> None:
    with pytest.raises(CodecError, match=r"got a tensor inside a transform of torch\.func; call thinwire outside"):
        transform(lambda x: thinwire.average(x, "qsgd").sum())(TENSOR)


@pytest.mark.parametrize("message", [m for m in SPECIAL if "FakeTensor" not in m])
def test_slots_with_such_residuals_are_refused(message: str) -> None:
    held = SPECIAL[message]()
    with pytest.raises(StateError) as caught:
        thinwire.average(TENSOR, "topk(density=0.5)", slot=Slot(residual_data=held))
    assert message in str(caught.value)
    with pytest.raises(StateError):
        Slot.from_state_dict({**Slot().state_dict(), "residual": held})
    if isinstance(held, Tensor):
        saved = {**Slot().state_dict(), "chain": "momentum(beta=0.9)", "shape": [64]}
        with pytest.raises(StateError) as caught:
            Slot.from_state_dict({**saved, "states": [{"velocity": held}]})
        assert message in str(caught.value)


def test_slots_of_another_type_are_refused() -> None:
    with pytest.raises(StateError, match=r"slot must be a thinwire\.Slot, kept from step to step; got dict"):
        thinwire.average(TENSOR, "qsgd", slot={})  # type: ignore[arg-type]
    with pytest.raises(StateError, match="got int"):
        thinwire.simulate("qsgd", [TENSOR], slots=[3])  # type: ignore[list-item]


def test_a_refused_call_leaves_the_slot_alone() -> None:
    for wrong in ({"weights": torch.ones(3)}, {"out": torch.ones(3)}, {"out": torch.ones(1).expand(64)}):
        slot = Slot()
        with pytest.raises(CodecError, match="must have" if "weights" in wrong else "out must"):
            thinwire.average(TENSOR, "iwp", slot=slot, **wrong)  # type: ignore[arg-type]
        assert slot == Slot()


def test_results_whose_elements_share_memory_are_refused() -> None:
    one = torch.ones(1).expand(SHAPE)
    for call in (lambda: thinwire.average(TENSOR, "qsgd", out=one), lambda: QSGD.decode(BYTES, SHAPE[0], out=one)):
        with pytest.raises(CodecError, match="out must have memory for each of its elements; got an expanded tensor"):
            call()


def test_parameters_and_subclasses_with_plain_memory_are_taken() -> None:
    class Named(Tensor):
        pass

    drawn = torch.randn(8, 8)
    expected = thinwire.average(drawn, "sign")
    for given in (nn.Parameter(drawn), drawn.as_subclass(Named), drawn.t().contiguous().t(), nn.Buffer(drawn)):
        assert torch.equal(thinwire.average(given, "sign").as_subclass(Tensor), expected)
        assert torch.equal(QSGD.encode(given), QSGD.encode(drawn))
